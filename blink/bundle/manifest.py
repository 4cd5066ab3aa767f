"""MANIFEST.json, the first file of a set: what is in it, and the SHA-256 of each file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from blink.errors import BlinkError

NAME = "MANIFEST.json"
FORMAT = 1
MOST_BYTES = 16 << 20
_PART = re.compile(r"[A-Za-z0-9_+@%,=~][A-Za-z0-9._+@%,=~-]*|\.[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_safe_path(path: str) -> bool:
    """Whether ``path`` stays below the folder it is unpacked in, on any file system."""
    return len(path) <= 1024 and all(_PART.fullmatch(part) for part in path.split("/"))


@dataclass(frozen=True)
class Entry:
    """One file: its path in the set, its length in bytes, its SHA-256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A whole set. ``about`` says what it is: version, release, the halves, the BFB, the model."""

    about: dict[str, Any]
    files: tuple[Entry, ...]

    def render(self) -> bytes:
        """As the bytes of MANIFEST.json."""
        document = {"format": FORMAT, "about": self.about, "files": [asdict(f) for f in self.files]}
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Read MANIFEST.json. Raises BlinkError where it is none, or names a path that leads out of the set."""
        try:
            document = json.loads(data)
            found = document["format"]
            if found != FORMAT:
                raise BlinkError(
                    f"{NAME}: format {found!r}", f"use the release of Blink that reads it; this reads {FORMAT}"
                )
            files = tuple(_entries(document["files"]))
            about = document["about"]
            if not isinstance(about, dict):
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BlinkError(
                f"{NAME}: not the manifest of a set", "copy the file again from where it was made"
            ) from None
        return cls(about, files)


def _entries(items: list[dict[str, Any]]) -> Iterator[Entry]:
    seen = {NAME}
    for item in items:
        entry = Entry(path=item["path"], bytes=item["bytes"], sha256=item["sha256"])
        if not is_safe_path(entry.path) or entry.path in seen:
            raise BlinkError(
                f"{NAME}: {entry.path!r} is no path of a set", "do not use this file: it was not made by make bundle"
            )
        if type(entry.bytes) is not int or entry.bytes < 0 or not _SHA256.fullmatch(entry.sha256):
            raise ValueError
        seen.add(entry.path)
        yield entry
