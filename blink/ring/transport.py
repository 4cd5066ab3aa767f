"""What a ring client needs of the link to the ring: asynchronous one-sided access to one partition.

The interface has the shape of RDMA, so that the client is written once: work is posted and later completes, bytes of
one chain land in any order, and a link that breaks leaves each posted write landed or not. Shared memory implements it
with plain copies (:mod:`blink.ring.shm`).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Region(enum.Enum):
    """Address space of an offset: the header, this worker's G_p, or this worker's F_p."""

    H = "H"
    G = "G"
    F = "F"


class Channel(enum.Enum):
    """Reads of different channels do not wait for each other (separate queue pairs over RDMA)."""

    STATUS = 0
    TOKENS = 1


class LinkState(enum.Enum):
    """DOWN: call ``reconnect``. CONNECTING: in progress. GONE: as DOWN, and the epoch that was attached has ended."""

    UP = "up"
    CONNECTING = "connecting"
    DOWN = "down"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a posted operation. ``data`` holds the bytes of a read, valid until the next ``poll``."""

    ticket: int
    ok: bool
    data: Bytes | None = None


class Transport(Protocol):
    """One-sided access for one partition. No method blocks. Offsets and lengths of reads are multiples of 4.

    An operation whose completion is not ok makes the link DOWN. Operations outstanding when the link goes down may
    never complete; their tickets are void.
    """

    partition: int

    @property
    def state(self) -> LinkState:
        """State of the link."""

    @property
    def detail(self) -> str:
        """Why the link is not up, in words; empty when it is."""

    def size(self, region: Region) -> int:
        """Bytes of ``region`` that this link reaches; only while it is UP."""

    def post_write(self, writes: Sequence[tuple[int, bytes]]) -> int:
        """Write each ``(offset in F_p, bytes)`` as one chain; returns its ticket.

        The completion means that every byte has landed. Before it any subset of the bytes may have, in any order, but
        an aligned 8-byte word lands whole.
        """

    def post_read(self, region: Region, offset: int, length: int, channel: Channel = Channel.STATUS) -> int:
        """Read ``length`` bytes at ``offset`` of ``region``; returns a ticket. Aligned 8-byte words are read whole."""

    def poll(self) -> list[Completion]:
        """Operations that ended since the last call."""

    def reconnect(self) -> None:
        """Drop the link if there is one and begin a new one.

        Once ``state`` is UP again nothing that was posted before can land or complete any more.
        """

    def close(self) -> None:
        """Give the link up. Idempotent."""
