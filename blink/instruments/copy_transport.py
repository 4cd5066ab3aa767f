"""A link to a ring in the memory of this process's own device, without RDMA."""

from __future__ import annotations

from collections.abc import Sequence

from blink.backend.gpu.ring import DeviceRing
from blink.gpu.memory import DeviceMemory
from blink.ring.layout import PAGE
from blink.ring.transport import Bytes, Channel, Completion, LinkState, Region


class CopyTransport:
    """A worker's link to a :class:`DeviceRing` of the same process: every operation is a copy that is waited for.

    Slow beside RDMA: it needs the host, and the context.
    """

    def __init__(self, ring: DeviceRing, partition: int) -> None:
        self.partition = partition
        geometry = ring.geometry
        self._spaces = {
            Region.H: (ring.g_memory, 0, PAGE),
            Region.G: (ring.g_memory, geometry.g_off + partition * geometry.g_stride, geometry.g_stride),
            Region.F: (ring.f_memory, partition * geometry.f_stride, geometry.f_stride),
        }
        self._state, self._tickets = LinkState.DOWN, 0
        self._done: list[Completion] = []

    def size(self, region: Region) -> int:
        """Bytes of ``region``; see :class:`blink.ring.transport.Transport`."""
        return self._spaces[region][2]

    @property
    def state(self) -> LinkState:
        """State of the link."""
        return self._state

    @property
    def detail(self) -> str:
        """Why the link is not up."""
        return "" if self._state is LinkState.UP else "closed"

    def _place(self, region: Region, offset: int, length: int) -> tuple[DeviceMemory, int]:
        memory, base, size = self._spaces[region]
        if offset < 0 or length < 0 or offset + length > size:
            raise ValueError(f"[{offset}, +{length}) is outside {region.name}")
        return memory, base + offset

    def post_write(self, writes: Sequence[tuple[int, bytes]]) -> int:
        """Copy every ``(offset in F_p, bytes)``; see :class:`blink.ring.transport.Transport`."""
        self._tickets += 1
        for offset, data in writes:
            memory, at = self._place(Region.F, offset, len(data))
            memory.write(at, data)
        self._done.append(Completion(self._tickets, True))
        return self._tickets

    def post_read(self, region: Region, offset: int, length: int, channel: Channel = Channel.STATUS) -> int:
        """Copy ``length`` bytes out of ``region``; see :class:`blink.ring.transport.Transport`."""
        self._tickets += 1
        memory, at = self._place(region, offset, length)
        data: Bytes = memory.read(at, length)
        self._done.append(Completion(self._tickets, True, data))
        return self._tickets

    def poll(self) -> list[Completion]:
        """What completed since the last call."""
        done, self._done = self._done, []
        return done

    def reconnect(self) -> None:
        """Begin anew; always succeeds."""
        self._done, self._state = [], LinkState.UP

    def close(self) -> None:
        """Give the link up. Idempotent."""
        self._done, self._state = [], LinkState.DOWN
