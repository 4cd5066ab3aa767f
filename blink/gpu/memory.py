"""Memory that device and host exchange: device memory, and host memory that the device maps.

Copies run on the device's own stream, so they do not wait for a loop that never ends. Nothing is freed while such a
loop runs, since freeing waits for the whole device.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver as cu

from blink.errors import BlinkError
from blink.gpu.cuda import Device, call

Bytes = npt.NDArray[np.uint8]
_HOST_PAGE = 4096


class DeviceMemory:
    """``size`` zeroed bytes of device memory at ``address``, aligned to 256 bytes. Raises BlinkError."""

    def __init__(self, device: Device, size: int, what: str) -> None:
        self.device, self.size = device, size
        self.address = int(call(cu.cuMemAlloc(size), f"allocating {size} bytes for {what}"))
        call(cu.cuMemsetD8Async(self.address, 0, size, device.stream), f"clearing {what}")
        device.synchronize()

    def write(self, offset: int, data: bytes | Bytes) -> None:
        """Store ``data`` at ``offset``; it is there when this returns."""
        raw = np.frombuffer(data, np.uint8)
        self._inside(offset, len(raw))
        if len(raw):
            at, stream = self.address + offset, self.device.stream
            call(cu.cuMemcpyHtoDAsync(at, raw.ctypes.data, len(raw), stream), "copying to the device")
            self.device.synchronize()

    def read(self, offset: int, size: int) -> Bytes:
        """A copy of ``size`` bytes at ``offset``, at a 64-byte boundary."""
        self._inside(offset, size)
        raw = np.zeros(size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        data = raw[start : start + size]
        if size:
            at, stream = self.address + offset, self.device.stream
            call(cu.cuMemcpyDtoHAsync(data.ctypes.data, at, size, stream), "copying from the device")
            self.device.synchronize()
        return data

    def export(self) -> int:
        """A dma-buf descriptor of this memory, which the caller closes; a NIC can be given it. Raises BlinkError."""
        if self.size % _HOST_PAGE:
            raise ValueError(f"{self.size} bytes are no whole number of pages")
        kind = cu.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        result = cu.cuMemGetHandleForAddressRange(self.address, self.size, kind, 0)
        return int(call(result, "exporting device memory as a dma-buf"))

    def _inside(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"[{offset}, +{size}) is outside {self.size} bytes of device memory")

    def free(self) -> None:
        """Give the memory back. Waits for the whole device. Idempotent."""
        if self.address:
            call(cu.cuMemFree(self.address), "freeing device memory")
            self.address = 0


def mapped_words(count: int) -> tuple[npt.NDArray[np.uint32], int]:
    """``count`` zeroed u32 words of host memory, and where the device sees them. They live as long as the process."""
    flags = cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP
    address = int(call(cu.cuMemHostAlloc(4 * count, flags), "allocating mapped host memory"))
    words = np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address))
    words[:] = 0
    return words, int(call(cu.cuMemHostGetDevicePointer(address, 0), "mapping host memory"))


class Registered:
    """An existing host mapping, u8, made accessible to the device at ``address``.

    Its pages stay in memory until :meth:`close`, which waits for the whole device.
    """

    def __init__(self, memory: Bytes, what: str) -> None:
        self._host = memory.ctypes.data
        flags = cu.CU_MEMHOSTREGISTER_PORTABLE | cu.CU_MEMHOSTREGISTER_DEVICEMAP
        try:
            call(cu.cuMemHostRegister(self._host, len(memory), flags), f"registering {what} for the device")
        except BlinkError as e:
            raise BlinkError(
                e.cause, "it must be on a tmpfs, and this user may lock that much memory (ulimit -l)"
            ) from None
        self.address = int(call(cu.cuMemHostGetDevicePointer(self._host, 0), f"mapping {what}"))

    def close(self) -> None:
        """Let the pages go. Idempotent."""
        if self._host:
            call(cu.cuMemHostUnregister(self._host), "unregistering host memory")
            self._host = 0
