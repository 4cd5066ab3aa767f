"""Who may drive which partition.

A lease on a partition is a living TCP connection of an authenticated frontend; the kernels' keepalive ends it within
seconds of the frontend's machine going away, and a process that is only stopped keeps it. Another frontend is refused
meanwhile. A frontend with the same holder id is the same one again, because a lock on its machine admits one process
per partition: its old connection is fenced, that is, its queue pairs are destroyed, before it gets an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_OBSERVERS = 16


class LeaseHeld(Exception):  # noqa: N818 - the answer to a claim
    """Another frontend has the partition, or all places of observers are taken; the text says who and since when."""


@dataclass(eq=False)
class Lease:
    """A right to a partition; ``fence`` takes it away with a reason and returns when nothing can land any more."""

    partition: int
    holder: bytes
    peer: str
    fence: Callable[[str], None]
    since: float = field(default_factory=time.monotonic)


class Leases:
    """All leases of a ring."""

    def __init__(self) -> None:
        self._workers: dict[int, Lease] = {}
        self._observers: set[Lease] = set()

    def claim(self, lease: Lease) -> None:
        """Give ``lease`` its partition, fencing an older one of the same holder. Raises LeaseHeld."""
        old = self._workers.get(lease.partition)
        if old is not None:
            if old.holder != lease.holder:
                raise LeaseHeld(
                    f"partition {lease.partition} is in use by the frontend at {old.peer} "
                    f"since {time.monotonic() - old.since:.0f} s"
                )
            self.release(old)
            old.fence(f"the partition was taken over by the same frontend at {lease.peer}")
        self._workers[lease.partition] = lease

    def observe(self, lease: Lease) -> None:
        """Note an observer. Raises LeaseHeld where there are too many."""
        if len(self._observers) >= MAX_OBSERVERS:
            raise LeaseHeld(f"{MAX_OBSERVERS} observers are connected already")
        self._observers.add(lease)

    def release(self, lease: Lease) -> None:
        """Take ``lease`` back. Idempotent."""
        self._observers.discard(lease)
        if self._workers.get(lease.partition) is lease:
            del self._workers[lease.partition]

    def all(self) -> list[Lease]:
        """Every lease."""
        return [*self._workers.values(), *self._observers]
