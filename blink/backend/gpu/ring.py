"""Where the ring is when the scheduler is on a device: in host memory that the device maps, or in device memory.

In host memory a frontend on the same machine attaches through shared memory (`single`); in device memory a NIC writes
it (`appliance`), and only copies reach it from the host.
"""

from __future__ import annotations

from collections.abc import Sequence

from blink.gpu.cuda import Device
from blink.gpu.memory import DeviceMemory, Registered
from blink.ring.header import Header
from blink.ring.layout import PAGE
from blink.ring.shm import RingObjects
from blink.ring.transport import Bytes, Channel, Completion, LinkState, Region


class HostRing:
    """A ring in shared memory, mapped by the device at ``g`` and ``f``."""

    def __init__(self, objects: RingObjects) -> None:
        """``objects`` must outlive this. Raises BlinkError where its pages cannot be locked."""
        self.geometry = objects.geometry
        self._g = Registered(objects.g, f"{objects.directory}/G")
        self._f = Registered(objects.f, f"{objects.directory}/F")
        self.g, self.f = self._g.address, self._f.address

    def close(self) -> None:
        """Let the device's mappings go. No driver may run. Idempotent."""
        self._g.close()
        self._f.close()


class DeviceRing:
    """A ring in device memory at ``g`` and ``f``, complete with its header: there is nothing to publish."""

    def __init__(self, device: Device, header: Header) -> None:
        self.geometry, self.epoch = header.geometry, header.epoch
        self.g_memory = DeviceMemory(device, self.geometry.g_bytes, "the ring's G")
        self.f_memory = DeviceMemory(device, self.geometry.f_bytes, "the ring's F")
        self.g, self.f = self.g_memory.address, self.f_memory.address
        for p in range(self.geometry.parts):
            self.g_memory.write(self.geometry.g_off + p * self.geometry.g_stride, header.epoch.to_bytes(8, "little"))
        self.g_memory.write(0, header.encode())

    def header_page(self) -> bytes:
        """H as it is now."""
        return self.g_memory.read(0, PAGE).tobytes()

    def descriptors(self) -> tuple[int, int]:
        """New dma-buf descriptors of G and F, which the caller closes. Raises BlinkError where the driver has none."""
        return self.g_memory.export(), self.f_memory.export()

    def close(self) -> None:
        """Free the memory. No driver may run. Idempotent."""
        self.g_memory.free()
        self.f_memory.free()


class CopyTransport:
    """A worker's link to a :class:`DeviceRing` of the same process: every operation is a copy that is waited for.

    For tests and measurements. Slow beside RDMA, and not for serving: it needs the host, and the context.
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
