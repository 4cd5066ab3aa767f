"""Progress of long work, as lines on stderr."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """Counts bytes done and prints at most one line a second; short work prints nothing."""

    INTERVAL_S = 1.0

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self.label, self.total, self.done = label, total, 0
        self._stream = stream
        self._next = time.monotonic() + self.INTERVAL_S

    def advance(self, n: int) -> None:
        """``n`` more bytes are done."""
        self.done += n
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self.INTERVAL_S
            total = f" of {self.total >> 20}" if self.total else ""
            share = f" ({100 * self.done // self.total} %)" if self.total else ""
            print(f"{self.label}: {self.done >> 20}{total} MiB{share}", file=self._stream or sys.stderr, flush=True)
