"""A fleet on this machine: every half is an inventory host of its own, with its own releases, state and services."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.ansible.bundles import PYTHON
from tests.ansible.playbook import ROOT, Run, ansible, processes
from tests.appliance import ENGINE, RING
from tests.ports import free_port
from tests.tiny_model import write_checkpoint


class LocalFleet:
    """``count`` appliances, ap1 and on, of ``release``; ap1 is the canary. Only playbooks start and stop them."""

    def __init__(self, root: Path, count: int, release: str, **variables: Any) -> None:
        self.root = root
        self.names = [f"ap{n}" for n in range(1, count + 1)]
        self.ports = {name: free_port() for name in self.names}
        self.inventory = root / "inventory"
        self.variables: dict[str, Any] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "blink_checkout": str(ROOT),
            "blink_transport": "shm",
            "blink_engine": "reference",
            "blink_state_dir": f"{root}/{{{{ inventory_hostname }}}}",
            "blink_venv": "{{ blink_state_dir }}/blink",
            "blink_run_dir": "{{ blink_state_dir }}/run",
            "blink_log_dir": "{{ blink_state_dir }}/log",
            "blink_config_file": "{{ blink_state_dir }}/blink.toml",
            "blink_ring_dir": f"/dev/shm/blink-{root.name}-{{{{ blink_appliance }}}}",
            "blink_model_source": str(write_checkpoint(root / "checkpoint")),
            "blink_model_name": "tiny",
            "blink_model_dir": "{{ blink_state_dir }}/models/tiny",
            "model_copy_folder": f"{root}/{{{{ blink_appliance }}}}-gpu/models/tiny",
            "blink_http_host": "127.0.0.1",
            "blink_api_keys": [],
            "blink_api_keys_file": "{{ blink_state_dir }}/api-keys",
            "blink_settings": {"engine": ENGINE, "ring": RING},
            "change_lock": f"{root}/lock-{{{{ blink_appliance }}}}",
            "release_method": "bundle",
            "release_python": PYTHON,
            "release_arch": os.uname().machine,
            "release_set": release,
            "drain_settle_s": 0,
            "preflight_disk_mib": 256,
            "preflight_memory_mib": 256,
            **variables,
        }
        self.more: dict[str, Any] = {}
        self.write()

    def document(self) -> dict[str, Any]:
        """The inventory; ``more`` are groups beside those of the appliances."""
        appliances = {
            name: {
                "vars": {"blink_appliance": name, "blink_http_port": self.ports[name]},
                "hosts": {f"{name}-gpu": {}, f"{name}-dpu": {}},
            }
            for name in self.names
        }
        halves = {
            group: {
                "hosts": {f"{name}-{half}": {} for name in self.names},
                "vars": {"release_requirements": [f"{end}.txt"]},
            }
            for group, half, end in (("gpu_hosts", "gpu", "backend"), ("dpus", "dpu", "frontend"))
        }
        children = {"appliances": {"children": appliances}, **halves, "canary": {"children": {self.names[0]: {}}}}
        return {"all": {"vars": self.variables, "children": children | self.more}}

    def write(self) -> None:
        """Write the inventory."""
        self.inventory.mkdir(parents=True, exist_ok=True)
        (self.inventory / "hosts.yml").write_text(yaml.safe_dump(self.document(), sort_keys=False))

    def run(self, playbook: str, *arguments: str, **variables: Any) -> Run:
        """Run a playbook on the fleet; ``variables`` are for this run."""
        extra = ["--extra-vars", json.dumps(variables)] if variables else []
        command = ["--inventory", str(self.inventory), playbook, *extra, *arguments]
        return ansible("ansible-playbook", *command)

    def release(self, half: str) -> str:
        """Id of the code that ``half``, such as ap1-dpu, would start now."""
        return (self.root / half / "blink/.release").read_text().strip()

    def services(self, name: str) -> dict[str, int]:
        """Process ids of an appliance's services."""
        found = {}
        for half, service in (("gpu", "backend"), ("dpu", "frontend")):
            running = processes(self.root / f"{name}-{half}" / "blink.toml")
            pids = [pid for pid, command in running.items() if f" {service} " in command]
            found |= {service: min(pids)} if pids else {}
        return found

    def status(self, name: str, path: str) -> int:
        """Status of a GET from an appliance, 0 where nothing answers."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.ports[name]}{path}", timeout=10, trust_env=False).status_code
        except httpx.HTTPError:
            return 0

    def audit(self, half: str) -> list[dict[str, Any]]:
        """The record of changes of a half, oldest first."""
        file = self.root / half / "log/audit.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def locks(self) -> list[str]:
        """Locks that are held."""
        return sorted(p.name for p in self.root.glob("lock-*"))

    def close(self) -> None:
        """Stop everything and remove it."""
        self.run("playbooks/down.yml").require()
        shutil.rmtree(self.root)
