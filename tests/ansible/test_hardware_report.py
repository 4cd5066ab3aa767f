"""The script of the role preflight that looks at GPU, card and the path between them, on made-up /sys trees."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ansible.playbook import ROOT
from tests.vendor import pci
from tests.vendor.identity import SERIAL
from tests.vendor.pci import GPU, NIC

SCRIPT = ROOT / "roles/preflight/files/hardware.py"
UUID = "GPU-5f2c"


class Machine:
    """A root directory and a PATH that the script takes for a machine's."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "root", folder / "bin"
        self.bin.mkdir()
        pci.add_device(self.root, GPU, pci.ABOVE[GPU], pci.NVIDIA)
        pci.add_device(self.root, NIC, pci.ABOVE[NIC], pci.MELLANOX)
        self.nic = pci.device(self.root, NIC)
        (self.nic / "vpd").write_bytes(pci.vpd(SERIAL))
        (self.root / "boot").mkdir()
        self.kernel("CONFIG_PCI_P2PDMA=y")
        self.tool("timedatectl", "echo yes")
        self.smi(UUID, "Enabled")

    def kernel(self, config: str) -> None:
        (self.root / f"boot/config-{platform.release()}").write_text(f"{config}\n")

    def tool(self, name: str, script: str) -> None:
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def smi(self, uuid: str, ecc: str) -> None:
        """nvidia-smi as it answers for one GPU."""
        self.tool(
            "nvidia-smi",
            f'case "$*" in *--id={uuid}*) echo "{uuid}, 00000000:18:00.0, {ecc}" ;;\n'
            f'*--id=*) echo "No devices were found"; exit 6 ;; *) echo {uuid} ;; esac',
        )

    def report(self) -> list[dict[str, str]]:
        command = [sys.executable, "-I", str(SCRIPT), "--root", str(self.root), "--gpu", UUID, "--ecc", "Enabled"]
        command += ["--card", "0000:0d:00.2", "--serial", SERIAL]
        environment = {"PATH": f"{self.bin}:{os.environ['PATH']}"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
        found: list[dict[str, str]] = json.loads(done.stdout)
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def signed(machine: Machine, *, enrolled: bool) -> None:
    pci.secure_boot(machine.root)
    machine.tool("mokutil", f"echo {machine.root}/var/lib/dkms/mok.pub is {'already' if enrolled else 'not'} enrolled")


def test_a_machine_that_fits_is_not_refused(machine: Machine) -> None:
    pci.set_bridge(machine.root, pci.SOURCE_VALIDATION)
    signed(machine, enrolled=True)
    assert machine.report() == []


@pytest.mark.parametrize(
    ("break_it", "cause", "remedy"),
    [
        (lambda m: m.kernel("# CONFIG_PCI_P2PDMA is not set"), "without PCI P2PDMA", "peermem"),
        (lambda m: signed(m, enrolled=False), "Secure Boot is on", "mokutil --import"),
        (lambda m: m.tool("timedatectl", "echo no"), "clock is not synchronised", "time servers"),
        (lambda m: m.smi("GPU-other", "Enabled"), f"GPU {UUID} is not here (GPU-other)", "blink_gpu_uuid"),
        (lambda m: m.tool("nvidia-smi", "echo couldnt communicate; exit 9"), "couldnt communicate", "blink_gpu_uuid"),
        (lambda m: m.smi(UUID, "Disabled"), f"ECC of the GPU {UUID} is Disabled, not Enabled", "-e 1"),
        (lambda m: m.nic.unlink(), f"no card of NVIDIA networking is at {NIC}", "blink_card.bdf"),
        (
            lambda m: (m.nic / "vpd").write_bytes(pci.vpd("MT9999X99999")),
            f"has the serial number MT9999X99999, not {SERIAL}",
            "swapped",
        ),
        (
            lambda m: pci.add_device(m.root, GPU, "pci0000:80/0000:80:01.0", pci.NVIDIA),
            "under different PCIe root complexes (pci0000:80, pci0000:0a)",
            "root complex",
        ),
        (lambda m: pci.translate(m.nic, "DMA-FQ"), f"translates the addresses of {NIC} (domain DMA-FQ)", "iommu=pt"),
        (lambda m: pci.set_bridge(m.root, pci.REDIRECTS), f"bridge 0000:0c:01.0 above {NIC} redirects", "firmware"),
    ],
    ids=["p2pdma", "secure-boot", "clock", "gpu", "no-driver", "ecc", "no-card", "serial", "root", "iommu", "acs"],
)
def test_what_does_not_fit_is_named_with_its_remedy(
    machine: Machine, break_it: Callable[[Machine], object], cause: str, remedy: str
) -> None:
    break_it(machine)
    found = machine.report()
    assert len(found) == 1, found
    assert cause in found[0]["cause"]
    assert remedy in found[0]["remedy"]


def test_all_faults_are_named_at_once(machine: Machine) -> None:
    pci.translate(machine.nic, "DMA-FQ")
    machine.smi(UUID, "Disabled")
    machine.tool("timedatectl", "echo no")
    assert len(machine.report()) == 3
