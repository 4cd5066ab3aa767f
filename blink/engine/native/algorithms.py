"""Which algorithm multiplies which matrix: chosen by time on the GPU at hand, and kept, since a choice decides bits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from blink.gpu.toolchain import keep


class Choices:
    """Algorithms by the product's shape, in a file that belongs to ``identity``; without ``path``, in memory.

    A file that cannot be read, or is of another identity, counts as empty.
    """

    def __init__(self, path: Path | None, identity: Mapping[str, str]) -> None:
        self._path, self._identity = path, dict(identity)
        self._made: dict[str, bytes] = {}
        self._changed = False
        if path is None:
            return
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            document = json.loads(path.read_text())
            if document["identity"] == self._identity:
                self._made = {k: bytes.fromhex(v) for k, v in document["algorithms"].items()}

    def get(self, product: str) -> bytes | None:
        """The algorithm for ``product``, as the library keeps it; None where none was chosen."""
        return self._made.get(product)

    def put(self, product: str, algorithm: bytes) -> None:
        """Choose ``algorithm``; :meth:`save` keeps it."""
        self._made[product], self._changed = algorithm, True

    def save(self) -> None:
        """Put what is new into the file. Raises OSError."""
        if self._path is not None and self._changed:
            document = {"identity": self._identity, "algorithms": {k: v.hex() for k, v in self._made.items()}}
            keep(self._path, (json.dumps(document, indent=1) + "\n").encode())
            self._changed = False
