"""A device of software, for machines whose kernel has no RDMA: real memory, real permissions, a link that breaks.

It stands in for pyverbs alone (blink.ring.verbs.fabric). Every host of one :class:`Network` lives in this process.
"""

from __future__ import annotations

import ctypes
import ipaddress
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from blink.ring.handshake import Endpoint
from blink.ring.verbs.fabric import FabricError, Limits, Op, Rights

SUCCESS, LOC_PROT, FLUSH, REM_ACCESS, RETRY_EXC = 0, 4, 5, 10, 12


@dataclass
class Network:
    """Queue pairs by number. ``up`` is the link; ``open`` counts what was made and not closed, by kind."""

    up: bool = True
    qps: dict[int, SimQueuePair] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("device", "domain", "memory", "qp"), 0))
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(17))

    def count(self, kind: str, change: int) -> None:
        with self.lock:
            self.open[kind] += change


class _Resource:
    def __init__(self, network: Network, kind: str) -> None:
        self._network, self._kind, self.closed = network, kind, False
        network.count(kind, 1)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._network.count(self._kind, -1)


class SimFabric(_Resource):
    """A device with one port."""

    def __init__(self, network: Network, address: str, *, mtu: int = 4096, responder: int = 16) -> None:
        super().__init__(network, "device")
        gid = ipaddress.IPv6Address(f"::ffff:{address}").packed
        self.network = network
        self.limits = Limits(gid, mtu, initiator=16, responder=responder, max_work=64)

    def domain(self) -> SimDomain:
        return SimDomain(self.network)


class SimDomain(_Resource):
    def __init__(self, network: Network) -> None:
        super().__init__(network, "domain")
        self.network = network
        self.memories: dict[int, SimMemory] = {}

    def register(self, address: int, length: int, rights: Rights) -> SimMemory:
        return SimMemory(self, address, length, rights)

    def register_dmabuf(self, fd: int, offset: int, length: int, rights: Rights) -> SimMemory:
        raise FabricError("registering a dma-buf with sim0: Operation not supported")

    def queue_pair(self, depth: int, rights: Rights) -> SimQueuePair:
        return SimQueuePair(self, depth, rights)

    def close(self) -> None:
        assert not self.memories, "a domain is closed after its memory"
        super().close()


class SimMemory(_Resource):
    def __init__(self, domain: SimDomain, address: int, length: int, rights: Rights) -> None:
        super().__init__(domain.network, "memory")
        self._domain, self.address, self.length, self.rights = domain, address, length, rights
        self.lkey = self.rkey = next(domain.network.numbers)
        domain.memories[self.rkey] = self

    def holds(self, address: int, length: int) -> bool:
        return self.address <= address and address + length <= self.address + self.length

    def close(self) -> None:
        self._domain.memories.pop(self.rkey, None)
        super().close()


class SimQueuePair(_Resource):
    """Operations run when they are polled, so that what is outstanding when the link breaks never lands."""

    def __init__(self, domain: SimDomain, depth: int, rights: Rights) -> None:
        super().__init__(domain.network, "qp")
        self._network, self._domain, self._depth, self._rights = domain.network, domain, depth, rights
        self.number, self.psn = next(domain.network.numbers), 1
        self._peer, self._reads, self._broken, self.initiates = 0, 0, False, False
        self._queue: list[tuple[Op, int, bool]] = []
        self.lists: list[int] = []  # lengths of the lists posted
        self._network.qps[self.number] = self

    def connect(self, local: Endpoint, remote: Endpoint, index: int, *, initiates: bool) -> None:
        assert local.qps[index] == (self.number, self.psn)
        self._peer, self.initiates = remote.qps[index][0], initiates
        self._reads = min(local.initiator, remote.responder)

    def post(self, ops: Sequence[Op], lkey: int, *, read: bool) -> None:
        assert self.initiates
        if len(self._queue) + len(ops) > self._depth:
            raise FabricError("posting: Cannot allocate memory")
        assert not read or len(self._queue) + len(ops) <= self._reads, "more reads in flight than the peer serves"
        self.lists.append(len(ops))
        self._queue += [(op, lkey, read) for op in ops]

    def poll(self) -> list[tuple[int, int]]:
        queue, self._queue = self._queue, []
        done = []
        for op, lkey, read in queue:
            status = FLUSH if self._broken else self._run(op, lkey, read)
            self._broken = self._broken or status != SUCCESS
            if op.signaled or status:
                done.append((op.wr_id, status))
        return done

    def _run(self, op: Op, lkey: int, read: bool) -> int:
        local = self._domain.memories.get(lkey)
        if local is None or not local.holds(op.local, op.length):
            return LOC_PROT
        peer = self._network.qps.get(self._peer)
        if not self._network.up or peer is None or peer._peer != self.number:
            return RETRY_EXC
        memory = peer._domain.memories.get(op.rkey)
        needed = Rights.READ if read else Rights.WRITE
        if memory is None or not memory.holds(op.remote, op.length):
            return REM_ACCESS
        if needed not in memory.rights or needed not in peer._rights:
            return REM_ACCESS
        source, target = (op.remote, op.local) if read else (op.local, op.remote)
        ctypes.memmove(target, source, op.length)
        return SUCCESS

    def close(self) -> None:
        self._network.qps.pop(self.number, None)
        super().close()
