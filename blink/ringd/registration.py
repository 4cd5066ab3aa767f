"""A ring as the device knows it: one protection domain per partition, and one for observers."""

from __future__ import annotations

import mmap
import os
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from blink.errors import BlinkError
from blink.ring.announce import Kind
from blink.ring.handshake import Access, Endpoint, RemoteRegion
from blink.ring.header import Header
from blink.ring.layout import PAGE
from blink.ring.verbs.fabric import Domain, Fabric, FabricError, Memory, QueuePair, Rights

PINNED = "raise LimitMEMLOCK of blink-ringd's unit above the ring's size, and see the kernel log"


class Responder:
    """Queue pairs that answer one frontend."""

    def __init__(self, fabric: Fabric, domain: Domain, rights: tuple[Rights, ...], peer: Endpoint) -> None:
        """Make one per entry of ``rights`` and connect it to ``peer``. Raises FabricError, leaving nothing."""
        self._stack = ExitStack()
        try:
            qps: list[QueuePair] = []
            for right in rights:
                qps.append(domain.queue_pair(1, right))
                self._stack.callback(qps[-1].close)
            limits, numbers = fabric.limits, tuple((qp.number, qp.psn) for qp in qps)
            self.endpoint = Endpoint(limits.gid, limits.mtu, limits.initiator, limits.responder, numbers)
            for index, qp in enumerate(qps):
                qp.connect(self.endpoint, peer, index, initiates=False)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Destroy them: nothing the frontend has posted lands any more. Idempotent."""
        self._stack.close()


@dataclass(frozen=True)
class _Place:
    domain: Domain
    regions: tuple[RemoteRegion, ...]


class RegisteredRing:
    """Registrations of a ring's memory, until :meth:`close`. H and G can be read, F_p read and written.

    Takes ``g_fd`` and ``f_fd`` over. Raises BlinkError where the memory is not that of ``header`` or the device does
    not take it.
    """

    def __init__(self, fabric: Fabric, header: Header, g_fd: int, f_fd: int, kind: Kind) -> None:
        self.header, self._fabric = header, fabric
        self._stack = ExitStack()
        self._objects: tuple[_Object, ...] = ()
        for fd in (g_fd, f_fd):
            self._stack.callback(os.close, fd)
        try:
            geometry = header.geometry
            g = _Object(g_fd, geometry.g_bytes, "G", kind, writable=False)
            f = _Object(f_fd, geometry.f_bytes, "F", kind, writable=True)
            self._objects = (g, f)  # a registration does not keep its mapping
            self._places = {}
            for p in range(geometry.parts):
                domain = self._domain()
                self._places[Access.WORKER, p] = _Place(
                    domain,
                    (
                        self._register(domain, g, 0, PAGE, Rights.READ),
                        self._register(
                            domain, g, geometry.g_off + p * geometry.g_stride, geometry.g_stride, Rights.READ
                        ),
                        self._register(domain, f, p * geometry.f_stride, geometry.f_stride, Rights.READ | Rights.WRITE),
                    ),
                )
            domain = self._domain()
            whole = self._register(domain, g, 0, geometry.g_bytes, Rights.READ)
            for p in range(geometry.parts):
                at = whole.address + geometry.g_off + p * geometry.g_stride
                self._places[Access.OBSERVER, p] = _Place(
                    domain,
                    (
                        RemoteRegion(whole.address, PAGE, whole.rkey),
                        RemoteRegion(at, geometry.g_stride, whole.rkey),
                        RemoteRegion(0, 0, 0),
                    ),
                )
        except FabricError as e:
            self.close()
            raise BlinkError(str(e), PINNED if kind is Kind.FILE else "use a device and driver with dma-buf") from None
        except BaseException:
            self.close()
            raise

    def _domain(self) -> Domain:
        domain = self._fabric.domain()
        self._stack.callback(domain.close)
        return domain

    def _register(self, domain: Domain, part: _Object, offset: int, length: int, rights: Rights) -> RemoteRegion:
        memory = part.register(domain, offset, length, rights)
        self._stack.callback(memory.close)
        return RemoteRegion(memory.address, length, memory.rkey)

    def regions(self, access: Access, partition: int) -> tuple[RemoteRegion, ...]:
        """H, G_p and F_p as a connection of that kind may use them."""
        return self._places[access, partition].regions

    def respond(self, access: Access, partition: int, peer: Endpoint) -> Responder:
        """Queue pairs for ``peer``: submission, status, tokens; one for an observer. Raises FabricError."""
        rights = (Rights.READ | Rights.WRITE, Rights.READ, Rights.READ) if access is Access.WORKER else (Rights.READ,)
        return Responder(self._fabric, self._places[access, partition].domain, rights, peer)

    def close(self) -> None:
        """Deregister and forget the memory; its queue pairs must be closed. Idempotent."""
        self._stack.close()
        self._objects = ()


class _Object:
    """The G or F object behind a descriptor."""

    def __init__(self, fd: int, size: int, name: str, kind: Kind, *, writable: bool) -> None:
        self._fd, self._address = fd, 0
        if kind is Kind.DMABUF:
            return
        if os.fstat(fd).st_size < size:
            raise BlinkError(f"the ring's {name} is shorter than its header says", "restart the backend")
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        try:
            self._mapping = np.frombuffer(mmap.mmap(fd, size, prot=prot), np.uint8)
        except OSError as e:
            raise BlinkError(f"the ring's {name} cannot be mapped: {e.strerror}", "announce shared memory") from None
        self._address = self._mapping.ctypes.data

    def register(self, domain: Domain, offset: int, length: int, rights: Rights) -> Memory:
        if self._address:
            return domain.register(self._address + offset, length, rights)
        return domain.register_dmabuf(self._fd, offset, length, rights)
