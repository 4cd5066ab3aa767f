"""Numbers of 16 bits between NumPy and the device, for the tests of the native engine's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from blink.engine.native.shape import Matrix, padded
from blink.engine.native.weights import to_real
from blink.gpu.memory import DeviceMemory
from blink.model.safetensors_file import to_float32

DTYPES = ("float16", "bfloat16")
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of one rounding."""


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """x as the device has it, in f32."""
    return to_numbers(to_real(x.astype(np.float32), dtype), dtype)


def to_numbers(bits: np.ndarray, dtype: str) -> np.ndarray:
    """u16 bits as f32."""
    return to_float32(bits if dtype == "bfloat16" else bits.view(np.float16))


def pad_rows(bits: np.ndarray) -> np.ndarray:
    """Rows of 16-bit numbers, padded as matrices are."""
    return np.pad(bits, ((0, 0), (0, padded(bits.shape[1]) - bits.shape[1])))


class Bench:
    """Device memory of one test, freed at its end."""

    def __init__(self, device: Any) -> None:
        self.device, self._held = device, {}

    def put(self, array: np.ndarray) -> int:
        """Device address of a copy."""
        memory = DeviceMemory(self.device, max(array.nbytes, 256), "a test")
        memory.write(0, np.ascontiguousarray(array).view(np.uint8).reshape(-1))
        self._held[memory.address] = memory
        return memory.address

    def reals(self, x: np.ndarray, dtype: str) -> int:
        """Device address of x as 16-bit numbers in padded rows."""
        return self.put(pad_rows(to_real(x.astype(np.float32), dtype)))

    def matrix(self, w: np.ndarray, dtype: str) -> Matrix:
        """W on the device."""
        return Matrix(*w.shape, self.reals(w, dtype))

    def get(self, address: int, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
        """A copy of an array that :meth:`put` made room for."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._held[address].read(0, size).view(dtype).reshape(shape).copy()

    def close(self) -> None:
        for memory in self._held.values():
            memory.free()
