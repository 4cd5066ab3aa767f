"""One piece of device memory, given out from its start to its end."""

from __future__ import annotations

from blink.engine.native.shape import ALIGN, aligned
from blink.gpu.cuda import Device
from blink.gpu.memory import DeviceMemory


class Arena:
    """``size`` zeroed bytes. Raises BlinkError where the device has no room."""

    def __init__(self, device: Device, size: int, what: str) -> None:
        self.memory = DeviceMemory(device, max(size, ALIGN), what)
        self._next = 0

    def take(self, size: int) -> int:
        """Device address of ``size`` more bytes."""
        at = self._next
        self._next += aligned(size)
        assert self._next <= self.memory.size, "the plan of this memory is too small"
        return self.memory.address + at

    def write(self, address: int, data: object) -> None:
        """Store an array or bytes at ``address``."""
        self.memory.write(address - self.memory.address, data)  # type: ignore[arg-type]

    def close(self) -> None:
        """Free it all."""
        self.memory.free()
