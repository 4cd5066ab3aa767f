"""Where the ring is when the scheduler is on a device: in host memory that the device maps, or in device memory.

In host memory a frontend on the same machine attaches through shared memory (`single`); in device memory a NIC writes
it (`appliance`), and only copies reach it from the host.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Protocol, Self

from blink.backend.readiness import OwnedRing
from blink.backend.setup import Setup
from blink.gpu.cuda import Device
from blink.gpu.memory import DeviceMemory, Registered
from blink.ring.announce import Kind
from blink.ring.header import Header
from blink.ring.layout import PAGE, Geometry
from blink.ring.shm import RingObjects


class RingForDevice(OwnedRing, Protocol):
    """A ring that a device reads and writes, its G at the device address ``g`` and its F at ``f``."""

    g: int
    f: int

    @classmethod
    def open(cls, device: Device, setup: Setup) -> Self:
        """A ring for the configuration, unpublished. Raises BlinkError."""

    @staticmethod
    def needs(geometry: Geometry) -> dict[str, int]:
        """Bytes of the device's memory that such a ring takes, by part."""


class MappedRing:
    """A ring in shared memory, mapped by the device at ``g`` and ``f``. ``objects`` are closed with it."""

    kind = Kind.FILE

    def __init__(self, objects: RingObjects) -> None:
        """Raises BlinkError where its pages cannot be locked."""
        self.objects, self.geometry, self.epoch = objects, objects.geometry, objects.epoch
        with ExitStack() as opened:
            opened.callback(objects.close)
            self.g, self.f = (
                opened.enter_context(closing(Registered(memory, f"{objects.directory}/{name}"))).address
                for name, memory in (("G", objects.g), ("F", objects.f))
            )
            self._opened = opened.pop_all()

    @classmethod
    def open(cls, device: Device, setup: Setup) -> Self:
        """See :meth:`RingForDevice.open`."""
        return cls(setup.shared_ring())

    @staticmethod
    def needs(geometry: Geometry) -> dict[str, int]:
        """Nothing of the device's memory."""
        return {}

    def publish(self) -> None:
        """See :meth:`blink.ring.shm.RingObjects.publish`."""
        self.objects.publish()

    def header_page(self) -> bytes:
        """H as it is now."""
        return self.objects.header_page()

    def descriptors(self) -> tuple[int, int]:
        """See :meth:`blink.ring.shm.RingObjects.descriptors`."""
        return self.objects.descriptors()

    def close(self) -> None:
        """Let the device's mappings go. No driver may run. Idempotent."""
        self._opened.close()


class DeviceRing:
    """A ring in device memory at ``g`` and ``f``, complete with its header."""

    kind = Kind.DMABUF

    def __init__(self, device: Device, header: Header) -> None:
        self.geometry, self.epoch = header.geometry, header.epoch
        self.g_memory = DeviceMemory(device, self.geometry.g_bytes, "the ring's G")
        self.f_memory = DeviceMemory(device, self.geometry.f_bytes, "the ring's F")
        self.g, self.f = self.g_memory.address, self.f_memory.address
        for p in range(self.geometry.parts):
            self.g_memory.write(self.geometry.g_off + p * self.geometry.g_stride, header.epoch.to_bytes(8, "little"))
        self.g_memory.write(0, header.encode())

    @classmethod
    def open(cls, device: Device, setup: Setup) -> Self:
        """See :meth:`RingForDevice.open`."""
        device.require_ordered_rdma()
        return cls(device, setup.header())

    @staticmethod
    def needs(geometry: Geometry) -> dict[str, int]:
        """See :meth:`RingForDevice.needs`."""
        return {"ring": geometry.g_bytes + geometry.f_bytes}

    def publish(self) -> None:
        """Nothing is left to do: nobody finds this memory before it is announced."""

    def header_page(self) -> bytes:
        """H as it is now."""
        return self.g_memory.read(0, PAGE).tobytes()

    def descriptors(self) -> tuple[int, int]:
        """New dma-buf descriptors of G and F, which the caller closes. Raises BlinkError where CUDA has none."""
        return self.g_memory.export(), self.f_memory.export()

    def close(self) -> None:
        """Free the memory. No driver may run. Idempotent."""
        self.g_memory.free()
        self.f_memory.free()


RINGS: dict[str, type[RingForDevice]] = {"shm": MappedRing, "verbs": DeviceRing}
"""By ring.transport: where those who reach the ring can have it."""
