"""Running playbooks, and looking at what they left without asking them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TIMEOUT_S = 600  # a hung run, not a slow one
PLAYBOOKS = ["site.yml", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "playbooks").glob("*.yml"))]
INVENTORIES = sorted(p.name for p in (ROOT / "inventory").iterdir() if p.is_dir())


@dataclass(frozen=True)
class Run:
    """A finished run of ansible-playbook."""

    rc: int
    output: str

    @property
    def words(self) -> str:
        """The output with every run of white space as one space, since messages are wrapped."""
        return re.sub(r"\s+", " ", self.output)

    def count(self, what: str) -> int:
        """``what`` (changed, failed, …) of the recap, over all hosts."""
        found = re.findall(rf"\b{what}=(\d+)", self.output)
        assert found, f"the run has no recap:\n{self.output}"
        return sum(map(int, found))

    def require(self) -> Run:
        """This run, which must have succeeded."""
        assert self.rc == 0, self.output
        return self


def ansible(program: str, *arguments: str, timeout_s: float = TIMEOUT_S, **environ: str) -> Run:
    """Run one of Ansible's programs from the checkout, with its configuration; ``environ`` are more variables."""
    environment = os.environ | {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_NOCOLOR": "1",
        **environ,
    }
    done = subprocess.run(
        [BIN / program, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Run(done.returncode, done.stdout)


def playbook(name: str, variables: dict[str, Any], *arguments: str) -> Run:
    """Run the playbook ``name`` with ``variables`` over those of the inventory."""
    return ansible("ansible-playbook", name, "--extra-vars", json.dumps(variables), *arguments)


def processes(config: Path) -> dict[int, str]:
    """What runs for the appliance of ``config``: command lines by process id, found by the kernel's word alone."""
    entry = f"BLINK_CONFIG={config}".encode()
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if entry in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found
