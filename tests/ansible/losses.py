"""Appliances that fail or fall silent at a chosen step of a roll-out, for the flow of the playbooks alone.

The playbooks, their roles `change` and `inventory_check`, and Ansible's ssh plugin are the real ones. What would change
a machine is replaced: each role by one that appends its step to the machine's log, and the program `ssh` by one that
runs the command here, or exits with 255, as ssh does, where the machine is dead.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.ansible.playbook import ROOT, Run, ansible
from tests.inventory.fleet import fleet, name, write

# By role and file of tasks: the step's name. A step that is listed in `fail` fails; in `die`, the machine falls silent.
STEPS = {
    "release": ["stage", "activate", "look", "back"],
    "configuration": ["foretell", "main"],
    "drain": ["main", "undrain"],
    "model": ["main"],
    "ringd": ["main"],
    "backend": ["main"],
    "frontend": ["main"],
    "smoke": ["main"],
}
OLD, NEW, NONE = ({"bundle": bundle, "id": code} for bundle, code in (("b1", "old"), ("b2", "new"), ("", "")))
FACTS: dict[str, dict[str, Any]] = {
    "release-stage": {"release_result": {"current": OLD, "previous": NONE, "staged": NEW}},
    "release-look": {"release_result": {"current": NEW, "previous": OLD, "staged": NONE}},
    "release-back": {"release_result": {"current": NEW, "id": "old", "configuration_hash": "h"}},
    "configuration-foretell": {"configuration_result": {"differs": False}},
}
SSH = """#!{python}
import os, subprocess, sys
from pathlib import Path
host = next(a for a in sys.argv[1:-1] if a.startswith("ap"))
if Path({root!r}, "dead", host).exists():
    print("ssh: connect to host", host, "port 22: No route to host", file=sys.stderr)
    sys.exit(255)
sys.exit(subprocess.run(["/bin/sh", "-c", sys.argv[-1]]).returncode)
"""


class Losses:
    """``count`` appliances, the first of which is the canary."""

    def __init__(self, root: Path, count: int) -> None:
        self.root, self.names = root, [name(n) for n in range(1, count + 1)]
        for folder in ("dead", "steps", "audit"):
            (root / folder).mkdir(parents=True)
        self._write_roles()
        ssh = root / "ssh"
        ssh.write_text(SSH.format(python=sys.executable, root=str(root)))
        ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
        inventory = fleet(count)
        inventory["all"]["children"]["canary"] = {"children": {name(1): {}}}
        inventory["all"]["vars"] = {
            "ansible_ssh_executable": str(ssh),
            "ansible_ssh_retries": 0,
            "ansible_python_interpreter": sys.executable,
            "blink_transport": "verbs",
            "blink_log_dir": str(root / "audit"),
            "blink_api_keys": [],
            "change_lock": f"{root}/lock-{{{{ inventory_hostname }}}}",
            "change_audit_file": f"{root}/audit/{{{{ inventory_hostname }}}}.jsonl",
            "change_connect_s": 2,
        }
        self.inventory = write(inventory, root / "inventory")

    def _write_roles(self) -> None:
        for role, files in STEPS.items():
            folder = self.root / "roles" / role / "tasks"
            folder.mkdir(parents=True)
            for file in files:
                step = f"{role}-{file}" if file != "main" else role
                tasks: list[dict[str, Any]] = [
                    {
                        "name": f"Do {step}",
                        "ansible.builtin.shell": (
                            f"echo {step} >> {self.root}/steps/{{{{ inventory_hostname }}}}; "
                            f"[ -e {self.root}/die-{step}-{{{{ inventory_hostname }}}} ] && "
                            f"touch {self.root}/dead/{{{{ inventory_hostname }}}}; "
                            f"! rm {self.root}/fail-{step}-{{{{ inventory_hostname }}}} 2>/dev/null"
                        ),
                        "changed_when": True,
                    }
                ]
                if step in FACTS:
                    tasks.append({"name": "Leave facts", "ansible.builtin.set_fact": FACTS[step]})
                (folder / f"{file}.yml").write_text(yaml.safe_dump(tasks, sort_keys=False))

    def fail(self, step: str, host: str) -> None:
        """Let ``step`` fail on ``host``, once."""
        (self.root / f"fail-{step}-{host}").touch()

    def die(self, step: str, host: str) -> None:
        """Let ``host`` fall silent after ``step``."""
        (self.root / f"die-{step}-{host}").touch()

    def kill(self, host: str) -> None:
        """Let ``host`` be silent from the start."""
        (self.root / "dead" / host).touch()

    def run(self, playbook: str = "playbooks/upgrade.yml", *arguments: str, **variables: Any) -> Run:
        """Run a playbook; appliances one at a time unless ``variables`` say otherwise."""
        extra = json.dumps({"rollout_batches": [1]} | variables)
        roles = f"{self.root}/roles:{ROOT}/roles"
        command = ["--inventory", str(self.inventory), playbook, "--extra-vars", extra, *arguments]
        return ansible("ansible-playbook", *command, ANSIBLE_ROLES_PATH=roles, ANSIBLE_SSH_CONTROL_PATH_DIR=os.devnull)

    def steps(self, host: str) -> list[str]:
        """What was done on a machine, in order."""
        file = self.root / "steps" / host
        return file.read_text().split() if file.exists() else []

    def result(self, host: str) -> str | None:
        """Result of the last change on record."""
        file = self.root / "audit" / f"{host}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        found: str | None = lines[-1].get("result") if lines else None
        return found

    def locks(self) -> list[str]:
        """Halves that are locked."""
        return sorted(p.name.removeprefix("lock-") for p in self.root.glob("lock-*"))
