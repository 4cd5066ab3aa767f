"""Leases of partitions: at most one frontend process drives a partition."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from blink.errors import BlinkError


class PartitionLease:
    """An exclusive lock on partition ``partition``, held until :meth:`release` or the end of the process.

    Taken before attaching to the ring, because every word of F_p has one writer. Raises BlinkError where another
    process holds it.
    """

    def __init__(self, run_dir: Path, partition: int) -> None:
        self.partition = partition
        path = run_dir / f"partition-{partition}.lock"
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as e:
            raise BlinkError(f"{path}: {e.strerror}", "make instance.run_dir writable for the frontend") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            self._fd = -1
            raise BlinkError(
                f"{path}: partition {partition} is in use by process {holder}", "stop that frontend first"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the partition up. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> PartitionLease:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.release()
