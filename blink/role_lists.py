"""The lists of engines in the roles, which Ansible must have literally; written by ``python -m blink.generate``."""

from __future__ import annotations

import re
from pathlib import Path

from blink.registry import ENGINES

CHOICES = re.compile(
    r"(?<=\n      blink_engine:\n        type: str\n        required: true\n        choices: )\[[^]]*\]"
)
ON_GPU = re.compile(r"(?<=blink_engine in )\[[^]]*\]")


def render(text: str) -> str:
    """``text`` of a role's file with the lists that blink/registry.py means."""
    names = f"[{', '.join(ENGINES)}]"
    on_gpu = f"[{', '.join(repr(name) for name, entry in ENGINES.items() if entry.on_gpu)}]"
    return ON_GPU.sub(on_gpu, CHOICES.sub(names, text))


def role_files(root: Path) -> dict[str, str]:
    """Name → text as it should be, of every file of ``roles/`` that has such a list."""
    found = {path: path.read_text() for kind in ("meta", "defaults") for path in root.glob(f"roles/*/{kind}/*.yml")}
    return {
        str(path.relative_to(root)): render(text)
        for path, text in sorted(found.items())
        if CHOICES.search(text) or ON_GPU.search(text)
    }
