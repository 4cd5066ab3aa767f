"""A transport that behaves like the worst network the protocol allows, in explicit steps.

Writes and reads are split into fragments of 8 to 64 bytes that take effect in any order, also across operations; an
operation completes some time after its last fragment. A cut leaves every fragment in flight landed or not and loses all
completions. Everything random comes from the generator given, so a run can be repeated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from blink.ring.header import Header
from blink.ring.layout import PAGE, Geometry
from blink.ring.transport import Bytes, Channel, Completion, LinkState, Region


class RingMemory:
    """Both objects of a ring in plain arrays, as a host would publish them."""

    def __init__(self, geometry: Geometry, *, epoch: int = 7, vocab: int = 997, max_context: int = 4096,
                 queue_cap: int = 1000, lanes: int = 4, pages: int = 512) -> None:  # fmt: skip
        self.geometry = geometry
        self.g = np.zeros(geometry.g_bytes // 8, np.uint64).view(np.uint8)
        self.f = np.zeros(geometry.f_bytes // 8, np.uint64).view(np.uint8)
        self.header = Header(geometry, epoch, lanes, queue_cap, vocab, max_context, 600, 16, pages, bytes(range(32)))
        self.g[:PAGE] = np.frombuffer(self.header.encode(), np.uint8)
        for p in range(geometry.parts):
            self.region(Region.G, p)[:8].view(np.uint64)[0] = epoch

    def region(self, region: Region, partition: int) -> Bytes:
        """View of one region, u8."""
        q = self.geometry
        if region is Region.H:
            return self.g[:PAGE]
        if region is Region.G:
            return self.g[q.g_off + partition * q.g_stride :][: q.g_stride]
        return self.f[partition * q.f_stride :][: q.f_stride]


@dataclass
class Operation:
    ticket: int
    region: Region
    fragments: list[tuple[int, int, bytes | None]]  # offset, length, bytes of a write
    offset: int = 0
    data: Bytes | None = None
    extents: list[tuple[int, int]] = field(default_factory=list)


class AdversarialTransport:
    """See the module. A subclass with ``fenced`` False is the mutant whose old connections live on."""

    fenced = True

    def __init__(
        self, memory: RingMemory, partition: int, rng: random.Random, stale: list[Operation] | None = None
    ) -> None:
        self.memory, self.partition, self._rng = memory, partition, rng
        self._state = LinkState.DOWN
        self.reachable = True
        self._tickets = 0
        self._flight: list[Operation] = []
        self.stale: list[Operation] = (
            stale if stale is not None else []
        )  # what is left of older connections where nothing fences them
        self._done: list[Completion] = []

    @property
    def state(self) -> LinkState:
        return self._state

    @property
    def detail(self) -> str:
        return "" if self._state is LinkState.UP else "the test cut the link"

    def size(self, region: Region) -> int:
        return len(self.memory.region(region, self.partition))

    def in_flight(self, region: Region) -> list[tuple[int, int]]:
        """Ranges of ``region`` that operations without a completion may still touch."""
        return [e for op in self._flight if op.region is region for e in op.extents]

    def post_write(self, writes: Sequence[tuple[int, bytes]]) -> int:
        fragments: list[tuple[int, int, bytes | None]] = []
        for offset, data in writes:
            assert offset % 4 == 0
            assert 0 <= offset <= offset + len(data) <= self.memory.geometry.f_stride
            fragments += [(a, b - a, data[a - offset : b - offset]) for a, b in self._split(offset, len(data))]
        return self._post(Operation(0, Region.F, fragments, extents=[(o, len(d)) for o, d in writes]))

    def post_read(self, region: Region, offset: int, length: int, channel: Channel = Channel.STATUS) -> int:
        size = len(self.memory.region(region, self.partition))
        assert offset % 4 == 0
        assert 0 <= offset < offset + length <= size, "8: a read outside the worker's own partition"
        fragments: list[tuple[int, int, bytes | None]] = [(a, b - a, None) for a, b in self._split(offset, length)]
        return self._post(Operation(0, region, fragments, offset, np.zeros(length, np.uint8), [(offset, length)]))

    def _split(self, offset: int, length: int) -> list[tuple[int, int]]:
        """Cut [offset, offset + length) at random multiples of 8."""
        cuts, at, end = [], offset, offset + length
        most = max(8, length // 128)  # words; the header is long and of no interest
        while at < end:
            to = min(end, (at // 8 + self._rng.choice((1, 1, 2, most))) * 8)
            cuts.append((at, to))
            at = to
        return cuts

    def _post(self, operation: Operation) -> int:
        self._tickets += 1
        operation.ticket = self._tickets
        if self._state is LinkState.UP:
            self._flight.append(operation)
        return self._tickets

    def _apply(self, operation: Operation, index: int) -> None:
        offset, length, data = operation.fragments.pop(index)
        memory = self.memory.region(operation.region, self.partition)
        if data is not None:
            memory[offset : offset + length] = np.frombuffer(data, np.uint8)
        elif operation.data is not None:
            at = offset - operation.offset
            operation.data[at : at + length] = memory[offset : offset + length]

    def step(self, fragments: int = 1) -> None:
        """Let up to ``fragments`` fragments or completions happen, anywhere."""
        for _ in range(fragments):
            late = self.stale and self._rng.random() < 0.02
            if not late and not self._flight:
                return
            operation = self._rng.choice(self.stale if late else self._flight)
            if operation.fragments:
                self._apply(operation, self._rng.randrange(len(operation.fragments)))
            elif operation in self._flight:
                self._flight.remove(operation)
                self._done.append(Completion(operation.ticket, True, operation.data))
            else:
                self.stale.remove(operation)

    def settle(self) -> None:
        """Let everything in flight happen."""
        while self._flight:
            self.step()

    def cut(self, reachable: bool = True) -> None:
        """Break the link; ``reachable`` False keeps it from coming back."""
        for operation in self._flight:
            while operation.fragments and operation.data is None and self._rng.random() < 0.7:
                self._apply(operation, self._rng.randrange(len(operation.fragments)))
        if not self.fenced:
            self.stale += [op for op in self._flight if op.data is None]
        self._flight.clear()
        self._done.clear()
        self._state, self.reachable = LinkState.DOWN, reachable

    def poll(self) -> list[Completion]:
        done, self._done = self._done, []
        self._rng.shuffle(done)
        return done

    def reconnect(self) -> None:
        if self._state is LinkState.UP:
            self.cut()
        if self.reachable:
            self._state = LinkState.UP

    def close(self) -> None:
        if self._state is LinkState.UP:
            self.cut()
