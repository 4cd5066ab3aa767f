"""The step buffers in device memory, for an engine that runs as captured graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from blink.engine.seam.batch import BATCH
from blink.gpu.cuda import Device
from blink.gpu.memory import DeviceMemory

_ALIGN = 256


def step_buffer_bytes(dims: Mapping[str, int]) -> int:
    """Bytes of device memory that the step buffers take."""
    return _lay_out(dims)[1]


def _lay_out(dims: Mapping[str, int]) -> tuple[dict[str, int], int]:
    offsets, end = {}, 0
    for name, (shape, dtype) in BATCH.shapes({**dims, "lanes1": dims["lanes"] + 1}).items():
        offsets[name] = end
        end += -(-int(np.prod(shape)) * dtype.itemsize // _ALIGN) * _ALIGN
    return offsets, end


class DeviceBuffers:
    """Device memory for every buffer of :data:`blink.engine.seam.batch.BATCH`, zeroed, and their pointer table.

    ``dims`` as for :class:`blink.engine.seam.buffers.BatchBuffers`. ``pointers`` is the C ``Batch`` struct, u64 device
    addresses, shape [number of buffers].
    """

    def __init__(self, device: Device, dims: Mapping[str, int]) -> None:
        self.dims = {**dims, "lanes1": dims["lanes"] + 1}
        self._shapes = BATCH.shapes(self.dims)
        self._offsets, size = _lay_out(dims)
        self.memory = DeviceMemory(device, size, "step buffers")
        self.pointers = np.array([self.memory.address + at for at in self._offsets.values()], np.uint64)

    def address(self, name: str) -> int:
        """Device address of one buffer. Raises KeyError."""
        return self.memory.address + self._offsets[name]

    def offset(self, name: str) -> int:
        """Where one buffer begins in :attr:`memory`. Raises KeyError."""
        return self._offsets[name]

    def read(self, name: str) -> npt.NDArray[Any]:
        """A copy of one buffer. Raises KeyError."""
        shape, dtype = self._shapes[name]
        size = int(np.prod(shape)) * dtype.itemsize
        return self.memory.read(self._offsets[name], size).view(dtype).reshape(shape)

    def close(self) -> None:
        """Free the memory. Nothing that uses it may run."""
        self.memory.free()
