"""A rack for each test that changes hardware, and Ansible runs against it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible.playbook import ROOT, Run, ansible
from tests.bfb.writer import Part, bundle_parts, cpio, stream
from tests.vendor.identity import BDF, FIRMWARE, OLD_FIRMWARE, SERIALS
from tests.vendor.machine import SSH, Machine, missing
from tests.vendor.repository import SUITE, Repository, vendor_repository

DRIVERS = ["570.1.0-1", "580.95.05-1"]
DOCA = ["3.1.0-1", "3.2.1-1"]
PLAY_S = 600  # two machines boot in it, and a loaded one is slow
RELEASE = "DOCA_3.2.1_BSP_4.13.1_Ubuntu_24.04-simulated"
GPU_UUID = "GPU-5f2c0000-0000-4000-8000-00000000000"
GPU = {"name": "NVIDIA H200", "bus": "00000000:18:00.0", "memory_mib": 143771, "ecc": "Enabled", "mig": "Disabled"}


def write_bfb(path: Path, release: str = RELEASE) -> Path:
    """A BFB whose system says that it is ``release``."""
    tree = io.BytesIO()
    with tarfile.open(fileobj=tree, mode="w") as tar:
        for name, text in {
            "etc/mlnx-release": f"{release}\n",
            "etc/ssh/sshd_config": "Include /etc/ssh/sshd_config.d/*.conf\n",
        }.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    archive = cpio({"./init": b"#!/bin/sh\n", "./ubuntu/image.tar.xz": lzma.compress(tree.getvalue())})
    parts = [part if part.id != 63 else Part(63, gzip.compress(archive, mtime=0)) for part in bundle_parts()]
    path.write_bytes(stream(*parts))
    return path


def state(number: int = 1) -> dict[str, Any]:
    """Host ``number`` as it is unpacked: a card in NIC mode, no driver, no RDMA stack."""
    keys = {"INTERNAL_CPU_MODEL": "EMBEDDED_CPU(1)", "INTERNAL_CPU_OFFLOAD_ENGINE": "DISABLED(1)"}
    return {
        "gpu": GPU | {"uuid": f"{GPU_UUID}{number}"},
        "driver": {"installed": None, "loaded": None, "boot": None},
        "ofed": None,
        "card": {
            "serial": f"{SERIALS}{number}", "bdf": BDF, "firmware": OLD_FIRMWARE, "firmware_in_bfb": FIRMWARE,
            "config": {key: {"default": value, "current": value, "next": value} for key, value in keys.items()},
        },
        "faults": {},
    }  # fmt: skip


def write_inventory(folder: Path, appliances: list[Appliance], **groups: Any) -> None:
    """Write folder/hosts.yml: ``appliances``, the first of which is the canary, and more ``groups``."""
    halves = {"gpu_hosts": [a.host for a in appliances], "dpus": [a.dpu for a in appliances]}
    children: dict[str, Any] = {group: {"hosts": {m.name: None for m in ms}} for group, ms in halves.items()}
    pairs = {
        a.name: {"hosts": {m.name: {"ansible_host": str(m.directory)} for m in (a.host, a.dpu)}, "vars": a.pair}
        for a in appliances
    }
    children |= {"appliances": {"children": pairs}, "canary": {"children": {appliances[0].name: None}}}
    variables = {
        "blink_checkout": str(ROOT),
        "ansible_ssh_executable": str(SSH),
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_transfer_method": "piped",
    }
    document = {"all": {"vars": variables, "children": children | groups}}
    (folder / "hosts.yml").write_text(yaml.safe_dump(document, sort_keys=False))


class Appliance:
    """The rack, seen from its operator."""

    def __init__(self, directory: Path, repository: Repository, number: int = 1) -> None:
        self.directory = directory
        self.name = f"ap{number:03}"
        self.host, self.dpu = (Machine(directory / f"{half}{number:02}") for half in ("gpu", "dpu"))
        self.repository = repository
        shutil.copytree(repository.folder, self.host.directory / "apt")
        self.host.directory.chmod(0o755)
        self.write_state(state(number))
        self.bfb = write_bfb(directory / "image.bfb")
        key = directory / "host_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        source = {"uri": "file:/vendor/apt", "suite": SUITE, "components": "main", "key": str(repository.key)}
        self.variables: dict[str, Any] = {
            "doca_host_repository": source,
            "doca_host_version": DOCA[1],
            "gpu_driver_repository": source,
            "gpu_driver_version": DRIVERS[1],
            "host_tuning_governor": "",
            "bluefield_image_bfb": str(self.bfb),
            "bluefield_image_release": RELEASE,
            "bluefield_image_firmware": FIRMWARE,
            "bluefield_image_sys": "/vendor/sys",
            "bluefield_image_answer_s": 20,
            "bluefield_image_settings": {
                "hostname": "dpu01",
                "password_hash": "$6$rounds=5000$saltsalt$0123456789abcdefghijklmnopqrstuvwxyz",
                "authorized_keys": [key.with_suffix(".pub").read_text().strip()],
                "host_key": key.read_text(),
            },
            "reboot_timeout_s": 60,
            # A room that is off says so at once.
            **{f"{role}_probe_s": 1 for role in ("bluefield_image", "refuse_while_serving", "reboot")},
            "change_connect_s": 1,
            "apt_pinned_retries": 1,
        }
        self.pair: dict[str, Any] = {
            "blink_appliance": self.name,
            "blink_topology": "same_card",
            "blink_gpu_uuid": f"{GPU_UUID}{number}",
            "blink_card": {"serial": f"{SERIALS}{number}", "bdf": BDF, "rshim_via": self.host.name},
            "blink_ring_net": {"host": f"10.9.{number}.1/30", "dpu": f"10.9.{number}.2/30"},
        }
        write_inventory(directory, [self])
        alone = ["setpriv", "--pdeathsig", "TERM", "unshare", "--mount", "--propagation", "private"]
        self._rack = subprocess.Popen(
            [*alone, sys.executable, "-m", "tests.vendor.rack", directory, str(number)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        try:
            while not (directory / "ready").exists():  # the rack itself gives up after a minute
                assert self._rack.poll() is None, "the rack has ended; it has said why"
                time.sleep(0.05)
        except BaseException:
            self.end()
            raise

    def install(self, *packages: str) -> None:
        """Install stand-ins without any role."""
        self.host.run("echo 'deb [trusted=yes] file:/vendor/apt stable main' >/etc/apt/sources.list.d/test.list")
        headers = f"linux-headers-{os.uname().release}"
        self.host.run(f"apt-get update -qq && apt-get install -qq -y {headers} {' '.join(packages)}")
        self.host.run("rm /etc/apt/sources.list.d/test.list && systemctl start rshim")

    def end(self) -> None:
        self._rack.send_signal(signal.SIGTERM)
        self._rack.wait(timeout=60)

    def state(self) -> dict[str, Any]:
        return json.loads((self.host.directory / "state.json").read_text())

    def write_state(self, content: dict[str, Any]) -> None:
        file = self.host.directory / "state.json"
        file.with_suffix(".test").write_text(json.dumps(content))
        file.with_suffix(".test").replace(file)

    def fault(self, **faults: Any) -> None:
        """Set faults of the hardware; None mends one."""
        content = self.state()
        content["faults"] = {name: value for name, value in (content["faults"] | faults).items() if value is not None}
        self.write_state(content)

    def refresh(self) -> None:
        """Wait until the card has cleared its log, and written its settings anew."""
        sign = self.host.directory / "rshim0/clear"
        sign.write_text("")
        while sign.exists():
            time.sleep(0.02)

    def calls(self, tool: str) -> list[list[str]]:
        """What ``tool`` was called with, call by call."""
        file = self.host.directory / "transcript"
        lines = file.read_text().splitlines() if file.exists() else []
        return [call[1:] for call in map(json.loads, lines) if call[0] == tool]

    def flashes(self) -> int:
        file = self.directory / "flashes"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def play(self, name: str, *arguments: str, **variables: Any) -> Run:
        """Run one of the plays beside this file."""
        extra = json.dumps(self.variables | variables)
        return ansible(
            "ansible-playbook", f"tests/vendor/{name}.yml", "--inventory", str(self.directory / "hosts.yml"),
            "--extra-vars", extra, *arguments, timeout_s=PLAY_S,
        )  # fmt: skip


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    if reason := missing():
        pytest.skip(reason)
    return vendor_repository(tmp_path_factory.mktemp("vendor") / "apt", driver=DRIVERS, doca=DOCA)


@contextlib.contextmanager
def racked(repository: Repository, number: int = 1) -> Iterator[Appliance]:
    """Appliance ``number``, until the block ends."""
    # Inside of a machine /tmp is its own, so the folder's path means something outside only.
    directory = Path(tempfile.mkdtemp(prefix="blink-rack-"))
    appliance = Appliance(directory, repository, number)
    try:
        yield appliance
    finally:
        appliance.end()
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def shared(repository: Repository) -> Iterator[Appliance]:
    """One that the tests of a file use after another, as they leave it."""
    with racked(repository) as appliance:
        yield appliance


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
