"""What is installed: the id of a release, derived from its content.

Two halves of an appliance, or a process and the files on disk, run the same release exactly when their ids agree.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import blink

CODE = frozenset({".py", ".h", ".cuh", ".cu", ".cpp"})
"""Sources only: a library differs between the architectures of one release, and travels with what it is built from."""


def release_id(folders: list[Path] | None = None) -> str:
    """The first 16 hex digits of the SHA-256 of every code file of the package, by relative path.

    An editable install spreads the package over ``folders`` (default: all that the import system knows): Python, and
    what CMake installed.
    """
    digest = hashlib.sha256()
    for folder in folders if folders is not None else [Path(p) for p in blink.__path__]:
        for file in sorted(f for f in folder.rglob("*") if f.suffix in CODE and f.is_file()):
            digest.update(file.relative_to(folder).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


@cache
def running_release() -> str:
    """The id of what was installed when this process first asked."""
    return release_id()
