"""Appliances of rooms as one fleet, on which whole playbooks run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.ansible.playbook import Run, ansible
from tests.vendor.conftest import PLAY_S, Appliance, write_inventory
from tests.vendor.machine import Machine
from tests.vendor.repository import TOOLS

# Where an inventory has what belongs to an appliance.
PLACES = {
    "blink_transport": "shm",
    "blink_venv": "/opt/blink",
    "blink_state_dir": "/var/lib/blink",
    "blink_run_dir": "/var/lib/blink/run",
    "blink_log_dir": "/var/log/blink",
    "blink_config_file": "/var/lib/blink/blink.toml",
    "blink_ring_dir": "/dev/shm/blink-{{ blink_appliance }}",
    "blink_model_dir": "/var/lib/blink/models/tiny",
    "blink_api_keys_file": "/var/lib/blink/api-keys",
    "release_method": "bundle",
}
# A room has less than a host, and its hardware is shown in its directory.
HARDWARE = {
    "preflight_hardware": True,
    "preflight_root": "/vendor",
    "preflight_memory_mib": 64,
    "preflight_disk_mib": 64,
    "preflight_shm_mib": 16,
    "blink_engine": "native",
    "blink_http_port": 8000,
}


class Fleet:
    """``appliances``, the first of which is the canary; ``groups`` are more of the inventory."""

    def __init__(self, folder: Path, *appliances: Appliance, **groups: Any) -> None:
        self.folder, self.appliances = folder, appliances
        self.variables = appliances[0].variables | PLACES
        settings = {"hostname": "{{ inventory_hostname }}"}
        self.variables["bluefield_image_settings"] = self.variables["bluefield_image_settings"] | settings
        folder.mkdir(exist_ok=True)
        write_inventory(folder, list(appliances), **groups)

    def run(self, playbook: str, *arguments: str, **variables: Any) -> Run:
        """Run a playbook of the product; ``variables`` are for this run."""
        return self._run(f"playbooks/{playbook}.yml", *arguments, **variables)

    def play(self, name: str, *arguments: str, **variables: Any) -> Run:
        """Run one of the plays beside this file."""
        return self._run(f"tests/vendor/{name}.yml", *arguments, **variables)

    def _run(self, file: str, *arguments: str, **variables: Any) -> Run:
        inventory, extra = str(self.folder / "hosts.yml"), json.dumps(self.variables | variables)
        return ansible(
            "ansible-playbook", file, "--inventory", inventory, "--extra-vars", extra, *arguments, timeout_s=PLAY_S
        )


def set_clock(*machines: Machine, synchronised: bool = True) -> None:
    """Have timedatectl say this of clocks, which rooms share with the machine that they run on."""
    for machine in machines:
        shutil.copy(TOOLS / "timedatectl", machine.directory)
        (machine.directory / "clock").write_text("yes\n" if synchronised else "no\n")
        machine.run("install -m 755 /vendor/timedatectl /usr/local/sbin/")


def audit(machine: Machine) -> list[tuple[str, str]]:
    """Verb and result of the changes that a machine has on record, oldest first; the result is empty at the begin."""
    lines = machine.run("cat /var/log/blink/audit.jsonl 2>/dev/null || true").stdout.splitlines()
    return [(line["verb"], line.get("result", "")) for line in map(json.loads, lines)]


def locks(machine: Machine) -> str:
    """The locks of changes on a machine."""
    return machine.run("ls -d /run/lock/blink-change-* 2>/dev/null || true").stdout.strip()
