"""An inventory as Ansible reads it: groups, members and variables."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.errors import BlinkError

TIMEOUT_S = 120


@dataclass(frozen=True)
class Appliance:
    """A group below ``appliances``; a right one has one member of each half."""

    name: str
    members: tuple[str, ...]
    gpu_hosts: tuple[str, ...]
    dpus: tuple[str, ...]
    variables: Mapping[str, Any]
    """Of its first member, since what belongs to the pair is set on the group."""


class Inventory:
    """The document that ``ansible-inventory --list`` prints. Variables are as written, templates not rendered."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._groups: dict[str, Any] = {name: group for name, group in document.items() if name != "_meta"}
        self.digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
        """By which the record of a change says what it was made from."""
        self.hostvars: Mapping[str, Mapping[str, Any]] = document.get("_meta", {}).get("hostvars", {})

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def children(self, group: str) -> list[str]:
        """Names of the groups directly below ``group``, in order."""
        return list(self._groups.get(group, {}).get("children", []))

    def direct_hosts(self, group: str) -> list[str]:
        """Machines that ``group`` lists itself."""
        return list(self._groups.get(group, {}).get("hosts", []))

    def hosts(self, group: str) -> list[str]:
        """Machines of ``group`` and of the groups below it, each once, in order."""
        found = dict.fromkeys(self.direct_hosts(group))
        for child in self.children(group):
            found |= dict.fromkeys(self.hosts(child))
        return list(found)

    def variable(self, host: str, name: str) -> Any:
        """Variable ``name`` of ``host``; None where it has none."""
        return self.hostvars.get(host, {}).get(name)

    def appliances(self) -> list[Appliance]:
        """The groups below ``appliances``."""
        halves = set(self.hosts("gpu_hosts")), set(self.hosts("dpus"))
        found = []
        for name in self.children("appliances"):
            members = tuple(self.hosts(name))
            gpu_hosts, dpus = (tuple(m for m in members if m in half) for half in halves)
            variables = self.hostvars.get(members[0], {}) if members else {}
            found.append(Appliance(name, members, gpu_hosts, dpus, variables))
        return found


def read_inventory(sources: Iterable[Path]) -> Inventory:
    """What Ansible makes of ``sources``. Raises BlinkError where it refuses them."""
    program = Path(sys.executable).parent / "ansible-inventory"
    command = [str(program) if program.exists() else "ansible-inventory", "--list"]
    for source in sources:
        command += ["--inventory", str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise BlinkError("ansible-inventory is not installed here", "install requirements/control.txt") from None
    except subprocess.TimeoutExpired:
        raise BlinkError(
            f"waited {TIMEOUT_S} s for ansible-inventory", "see whether a script or plugin of the inventory hangs"
        ) from None
    if done.returncode != 0:
        vault = "vault" in done.stderr.lower()
        raise BlinkError(
            f"ansible-inventory refuses it: {_told(done.stderr)}",
            "name the vault's client in ANSIBLE_VAULT_IDENTITY_LIST" if vault else "correct the file that it names",
        )
    return Inventory(json.loads(done.stdout))


def _told(stderr: str) -> str:
    """The error in what Ansible printed, and the place in a file that it means."""
    lines = stderr.splitlines()
    error = next(
        (line.removeprefix("[ERROR]: ") for line in lines if line.startswith("[ERROR]")), "it does not say why"
    )
    origin = next((line.removeprefix("Origin: ") for line in lines if line.startswith("Origin: ")), "")
    return f"{error.rstrip('.')} ({origin})" if origin else error.rstrip(".")
