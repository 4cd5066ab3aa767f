"""The step buffers in host memory, for the reference engine and for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from blink.engine.seam.batch import BATCH


class BatchBuffers:
    """NumPy arrays for every buffer of :data:`blink.engine.seam.batch.BATCH`, as attributes, and their pointer table.

    ``dims`` has lanes, tokens (largest step, >= lanes) and lane_pages. Arrays are zeroed, 64-byte aligned and never
    move. ``pointers`` is the C ``Batch`` struct: u64, shape [number of buffers].
    """

    def __init__(self, dims: Mapping[str, int]) -> None:
        self.dims = {**dims, "lanes1": dims["lanes"] + 1}
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        for name, (shape, dtype) in BATCH.shapes(self.dims).items():
            raw = np.zeros(int(np.prod(shape)) * dtype.itemsize + 64, np.uint8)
            start = -raw.ctypes.data % 64
            self._arrays[name] = raw[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)
        self.pointers = np.array([a.ctypes.data for a in self._arrays.values()], np.uint64)

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        try:
            return self.__dict__["_arrays"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"no step buffer is called {name}") from None
