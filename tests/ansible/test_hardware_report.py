"""The script of the role preflight that looks at GPU, card and the path between them, on made-up /sys trees."""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ansible.playbook import ROOT

SCRIPT = ROOT / "roles/preflight/files/hardware.py"
UUID, SERIAL = "GPU-5f2c", "MT2512X00001"
GPU, NIC = "0000:18:00.0", "0000:0d:00.0"
SWITCH = "pci0000:0a/0000:0a:01.0/0000:0b:00.0"


def vpd(serial: str) -> bytes:
    """Identifier, then read-only fields: part number and serial number."""
    name = b"BlueField-3"
    fields = b"PN" + bytes([4]) + b"900-" + b"SN" + bytes([len(serial)]) + serial.encode()
    return b"\x82" + struct.pack("<H", len(name)) + name + b"\x90" + struct.pack("<H", len(fields)) + fields + b"\x78"


def bridge_config(acs_control: int) -> bytes:
    """Configuration space whose second extended capability is ACS."""
    config = bytearray(4096)
    config[0x100:0x104] = struct.pack("<I", 0x0001 | 1 << 16 | 0x148 << 20)  # advanced error reporting, then
    config[0x148:0x150] = struct.pack("<IHH", 0x000D | 1 << 16, 0x5F, acs_control)
    return bytes(config)


class Machine:
    """A root directory and a PATH that the script takes for a machine's."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "root", folder / "bin"
        self.devices = self.root / "sys/bus/pci/devices"
        self.devices.mkdir(parents=True)
        self.bin.mkdir()
        self.add(GPU, f"{SWITCH}/0000:0c:00.0", "0x10de")
        self.add(NIC, f"{SWITCH}/0000:0c:01.0", "0x15b3")
        (self.devices / NIC / "vpd").write_bytes(vpd(SERIAL))
        (self.root / "boot").mkdir()
        self.kernel("CONFIG_PCI_P2PDMA=y")
        self.tool("timedatectl", "echo yes")
        self.smi(UUID, "Enabled")

    def add(self, bdf: str, above: str, vendor: str) -> None:
        """Put a device at the end of a path of bridges."""
        path = self.root / "sys/devices" / above / bdf
        path.mkdir(parents=True)
        (path / "vendor").write_text(f"{vendor}\n")
        (path / "iommu_group").mkdir()
        (path / "iommu_group/type").write_text("identity\n")
        (self.devices / bdf).unlink(missing_ok=True)
        (self.devices / bdf).symlink_to(path)

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


def secure_boot(machine: Machine, *, enrolled: bool) -> None:
    variables = machine.root / "sys/firmware/efi/efivars"
    variables.mkdir(parents=True)
    (variables / "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c").write_bytes(b"\6\0\0\0\1")
    key = machine.root / "var/lib/dkms/mok.pub"
    key.parent.mkdir(parents=True)
    key.write_text("key")
    machine.tool("mokutil", f"echo {key} is {'already' if enrolled else 'not'} enrolled")


def bridge(machine: Machine, control: int) -> None:
    (machine.root / "sys/devices" / SWITCH / "0000:0c:01.0/config").write_bytes(bridge_config(control))


def other_root(machine: Machine) -> None:
    machine.add(GPU, "pci0000:80/0000:80:01.0", "0x10de")


def translated(machine: Machine) -> None:
    (machine.devices / NIC / "iommu_group/type").write_text("DMA-FQ\n")


def other_serial(machine: Machine) -> None:
    (machine.devices / NIC / "vpd").write_bytes(vpd("MT9999X99999"))


def test_a_machine_that_fits_is_not_refused(machine: Machine) -> None:
    bridge(machine, 0x01)  # source validation alone redirects nothing
    secure_boot(machine, enrolled=True)
    assert machine.report() == []


@pytest.mark.parametrize(
    ("break_it", "cause", "remedy"),
    [
        (lambda m: m.kernel("# CONFIG_PCI_P2PDMA is not set"), "without PCI P2PDMA", "peermem"),
        (lambda m: secure_boot(m, enrolled=False), "Secure Boot is on", "mokutil --import"),
        (lambda m: m.tool("timedatectl", "echo no"), "clock is not synchronised", "time servers"),
        (lambda m: m.smi("GPU-other", "Enabled"), f"GPU {UUID} is not here (GPU-other)", "blink_gpu_uuid"),
        (lambda m: m.tool("nvidia-smi", "echo couldnt communicate; exit 9"), "couldnt communicate", "blink_gpu_uuid"),
        (lambda m: m.smi(UUID, "Disabled"), f"ECC of the GPU {UUID} is Disabled, not Enabled", "-e 1"),
        (lambda m: (m.devices / NIC).unlink(), f"no card of NVIDIA networking is at {NIC}", "blink_card.bdf"),
        (other_serial, f"has the serial number MT9999X99999, not {SERIAL}", "swapped"),
        (other_root, "under different PCIe root complexes (pci0000:80, pci0000:0a)", "root complex"),
        (translated, f"translates the addresses of {NIC} (domain DMA-FQ)", "iommu=pt"),
        (lambda m: bridge(m, 0x1D), f"bridge 0000:0c:01.0 above {NIC} redirects", "firmware"),
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
    translated(machine)
    machine.smi(UUID, "Disabled")
    machine.tool("timedatectl", "echo no")
    assert len(machine.report()) == 3
