"""What this package needs of an RDMA device: the seam between the protocol and pyverbs.

:mod:`blink.ring.verbs.device` is the one implementation of the appliance. Both sides use it: ringd registers the ring
and makes queue pairs that only answer; the transport posts work. ``close`` is idempotent everywhere, and what was made
from an object is closed before it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from blink.ring.handshake import Endpoint


class Rights(enum.Flag):
    """What the remote side may do to a memory region."""

    NONE = 0
    READ = enum.auto()
    WRITE = enum.auto()


@dataclass(frozen=True, slots=True)
class Op:
    """One RDMA read or write: ``length`` bytes between ``local`` and ``remote`` addresses."""

    wr_id: int
    local: int
    remote: int
    rkey: int
    length: int
    signaled: bool = True


@dataclass(frozen=True)
class Limits:
    """Of a device and its port. ``mtu`` is the active one, in bytes."""

    gid: bytes
    mtu: int
    initiator: int
    responder: int
    max_work: int


class FabricError(Exception):
    """An operation of the device failed; the text says which and why."""


class Memory(Protocol):
    """A registered memory region."""

    address: int
    lkey: int
    rkey: int

    def close(self) -> None:
        """Deregister it."""


class QueuePair(Protocol):
    """A reliable connected queue pair with a completion queue of its own."""

    number: int
    psn: int

    def connect(self, local: Endpoint, remote: Endpoint, index: int, *, initiates: bool) -> None:
        """Connect to queue pair ``index`` of ``remote``; one that does not initiate only answers."""

    def post(self, ops: Sequence[Op], lkey: int, *, read: bool) -> None:
        """Post ``ops``, all within the memory of ``lkey``, as one list. Raises FabricError."""

    def poll(self) -> list[tuple[int, int]]:
        """(wr_id, status) of signaled operations that ended; status 0 is success."""

    def close(self) -> None:
        """Destroy it: nothing that it received or posted lands afterwards."""


class Domain(Protocol):
    """A protection domain: its queue pairs reach its memory and no other."""

    def register(self, address: int, length: int, rights: Rights) -> Memory:
        """Register mapped memory."""

    def register_dmabuf(self, fd: int, offset: int, length: int, rights: Rights) -> Memory:
        """Register memory of another device, such as a GPU. Raises FabricError where the device cannot."""

    def queue_pair(self, depth: int, rights: Rights) -> QueuePair:
        """An unconnected queue pair that can have ``depth`` operations outstanding."""

    def close(self) -> None:
        """Give it back."""


class Fabric(Protocol):
    """An open device and the port of it that is used."""

    limits: Limits

    def domain(self) -> Domain:
        """A new protection domain."""

    def close(self) -> None:
        """Close the device."""
