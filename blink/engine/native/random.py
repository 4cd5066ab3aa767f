"""Seeded random numbers made on the device: weights of models whose checkpoints are not at hand, and activations."""

from __future__ import annotations

import zlib

from blink.engine.native.layout import RANDOM, RANDOM_BLOCKS, RandomArguments
from blink.engine.native.shape import Matrix, defines
from blink.engine.seam.engine import DType
from blink.gpu.cuda import Device
from blink.gpu.kernels import load


class RandomSource:
    """Weights by seed and tensor name: uniform, of variance 1 / inputs; norms between 0.5 and 1.5, biases ± 0.1."""

    def __init__(self, device: Device, seed: int, dtype: DType) -> None:
        self._device, self._seed = device, seed
        self._kernel = load(device, RANDOM, defines=defines(dtype))[RANDOM.name]

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
        arguments = RandomArguments(
            w=real, wide=wide, rows=rows, width=width, stride=stride, seed=seed & 0xFFFFFFFFFFFFFFFF, bound=bound,
            middle=middle,
        )  # fmt: skip
        self._kernel.enqueue(RANDOM_BLOCKS, arguments, self._device.stream)
