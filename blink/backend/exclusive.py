"""One backend per ring: a lock on the ring's directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from blink.errors import BlinkError


class RingLock:
    """Holds the ring directory, made if missing, for this process; the kernel drops the lock with the process.

    The directory itself is locked, so two configurations that share it by mistake exclude each other too, and nothing
    stays behind. A stopped (SIGSTOP) holder still holds. Raises BlinkError where another process has it.
    """

    def __init__(self, ring_dir: Path) -> None:
        self._ring_dir = ring_dir
        try:
            ring_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._fd = os.open(ring_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as e:
            raise BlinkError(
                f"instance.ring_dir {ring_dir}: {e.strerror}", "name a directory on a tmpfs that this user may write"
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise BlinkError(
                f"instance.ring_dir {ring_dir}: another backend serves this ring",
                "stop it first, or give this instance its own ring_dir",
            ) from None

    def _remove_rings(self) -> None:
        for pattern in ("G", "F", ".G.*", ".F.*"):
            for path in self._ring_dir.glob(pattern):
                path.unlink(missing_ok=True)

    def __enter__(self) -> RingLock:
        # Of a backend that was killed: its memory is needed, and its workers learn that it is gone.
        self._remove_rings()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove_rings()
        os.close(self._fd)
