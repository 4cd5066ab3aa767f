"""Seeded random numbers made on the device: weights of models whose checkpoints are not at hand, and activations."""

from __future__ import annotations

import ctypes
import zlib

from blink.engine.native.shape import Matrix
from blink.engine.seam.engine import DType
from blink.gpu.cuda import Device, launch

_GRID, _THREADS = 1056, 256


class RandomSource:
    """Weights by seed and tensor name: uniform, of variance 1 / inputs; norms between 0.5 and 1.5, biases ± 0.1."""

    def __init__(self, device: Device, seed: int, dtype: DType) -> None:
        self._device, self._seed = device, seed
        defines = {"BLINK_BF16": 1} if dtype == "bfloat16" else {}
        self._kernel = device.kernels("native/layers.cu", ["native_random"], defines=defines)["native_random"]

    def matrix(self, to: Matrix, row: int, name: str, outputs: int) -> None:
        """Fill rows ``row`` … ``row + outputs`` of ``to``."""
        at = to.address + 2 * to.stride * row
        scale = 1.0 if "embed" in name else float(to.inputs) ** -0.5
        shape = (outputs, to.inputs, to.stride)
        self._fill(name, shape, real=at, bound=3**0.5 * scale)

    def vector(self, address: int, name: str, length: int) -> None:
        """Fill f32 at ``address``."""
        bound, middle = (0.1, 0.0) if name.endswith("bias") else (0.5, 1.0)
        self._fill(name, (1, length, length), wide=address, bound=bound, middle=middle)

    def activation(self, to: Matrix) -> None:
        """Fill ``to`` with numbers of variance 1, which is what RMSNorm makes."""
        self._fill("activation", (to.outputs, to.inputs, to.stride), real=to.address, bound=3**0.5)

    def _fill(
        self, name: str, shape: tuple[int, int, int], *, bound: float, middle: float = 0, real: int = 0, wide: int = 0
    ) -> None:  # fmt: skip
        rows, width, stride = shape
        seed = self._seed << 32 | zlib.crc32(name.encode())
        arguments = [
            ctypes.c_uint64(real), ctypes.c_uint64(wide), ctypes.c_uint64(rows), ctypes.c_uint32(width),
            ctypes.c_uint32(stride), ctypes.c_uint64(seed & 0xFFFFFFFFFFFFFFFF), ctypes.c_float(bound),
            ctypes.c_float(middle),
        ]  # fmt: skip
        launch(self._kernel, _GRID, _THREADS, arguments, self._device.stream)
