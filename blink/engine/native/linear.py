"""Linear layers: own kernels for few rows, cuBLASLt for many; see kernels/native/linear.cu."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from dataclasses import dataclass

from cuda.bindings import driver as cu

from blink.engine.native.cublaslt import CublasLt
from blink.engine.native.ops import Ops, Rotary
from blink.engine.native.shape import REAL, Matrix
from blink.engine.native.weights import Linear
from blink.engine.seam.engine import DType
from blink.gpu.cuda import Device, Stream, allow_shared, launch

SMALL = 8
"""Rows that a block of the own kernels takes, and tokens up to which they do the whole step."""
NORMED, NORMED_SIZE = 2, 7680
"""Rows, and numbers of them, that the own kernels can make by RMSNorm themselves: what shared memory holds."""
_THREADS, _SPLITS, _TILE = 256, 8, 16


class Epilogue(enum.Enum):
    """What happens to a product: stored (16 bits); queries rotated and stored, keys rotated and values taken to the
    cache; added to y (f32); SwiGLU of its halves stored (16 bits); stored (f32)."""

    STORE = "store"
    ROTATE = "rotate"
    RESIDUAL = "residual"
    SILU = "silu"
    LOGITS = "logits"


@dataclass(frozen=True)
class Norm:
    """x is made of f32 rows at device address ``of``, by RMSNorm with f32 ``weight`` and ``eps``."""

    of: int
    weight: int
    eps: float


@dataclass(frozen=True)
class _Kernel:
    """One of the source's: ``ahead`` steps, of ``step`` chunks, of W on their way; ``resident`` blocks on a
    multiprocessor."""

    step: int
    ahead: int
    resident: int


_KERNELS = {
    (NORMED, Epilogue.STORE): _Kernel(4, 3, 2),
    (NORMED, Epilogue.ROTATE): _Kernel(4, 2, 3),
    (NORMED, Epilogue.SILU): _Kernel(4, 3, 2),
    **{(SMALL, e): _Kernel(4, 2, 3) if e is Epilogue.ROTATE else _Kernel(4, 3, 2) for e in Epilogue},
}
"""By the most rows of x that a block takes, and what it does with them."""


class _Arguments(ctypes.Structure):
    """``Layer`` of the source."""

    _fields_ = [
        ("w", ctypes.c_uint64), ("x", ctypes.c_uint64), ("y", ctypes.c_uint64), ("bias", ctypes.c_uint64),
        ("outputs", ctypes.c_uint32), ("k", ctypes.c_uint32), ("x_stride", ctypes.c_uint32),
        ("y_stride", ctypes.c_uint32), ("count", ctypes.c_uint64), ("share", ctypes.c_uint32),
        ("width", ctypes.c_uint32), ("normed", ctypes.c_uint64), ("weight", ctypes.c_uint64), ("eps", ctypes.c_float),
        ("rotary", Rotary),
    ]  # fmt: skip


class SmallLinear:
    """y = x Wᵀ by the own kernels: a row's bits depend on that row of x alone, however many rows there are."""

    def __init__(self, device: Device, dtype: DType) -> None:
        defines = {"BLINK_BF16": 1} if dtype == "bfloat16" else {}
        self._kernels = device.kernels("native/linear.cu", [_name(*key) for key in _KERNELS], defines=defines)
        processors = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self._processors = device.attribute(processors)
        for (rows, epilogue), kernel in _KERNELS.items():
            allow_shared(self._kernels[_name(rows, epilogue)], _shared(kernel, rows, NORMED_SIZE * (rows == NORMED)))

    def takes_norm(self, matrix: Matrix, rows: int) -> bool:
        """Whether :meth:`enqueue` can make its x itself."""
        return rows <= NORMED and rows * matrix.stride <= NORMED_SIZE

    def enqueue(
        self, linear: Linear, epilogue: Epilogue, x: int | Norm, y: int, *, y_stride: int, rows: int, count: int,
        stream: Stream, rotary: Rotary | None = None,
    ) -> None:  # fmt: skip
        """Multiply up to ``rows`` rows at ``x``, padded as the matrix is; the word at ``count`` says how many.

        ``rotary`` is ROTATE's: it rotates whole heads, and has no norms.
        """
        matrix, normed = linear.matrix, isinstance(x, Norm)
        most = NORMED if normed else SMALL
        kernel = _KERNELS[most, epilogue]
        outputs = matrix.outputs // 2 if epilogue in (Epilogue.SILU, Epilogue.ROTATE) else matrix.outputs
        share = 8 * -(-outputs // (8 * self._processors * kernel.resident))  # as even as groups of eight allow
        arguments = _Arguments(
            w=matrix.address, y=y, bias=linear.bias, outputs=outputs, k=matrix.stride, x_stride=matrix.stride,
            y_stride=y_stride, count=count, share=share, width=matrix.inputs,
        )  # fmt: skip
        if isinstance(x, Norm):
            arguments.normed, arguments.weight, arguments.eps = x.of, x.weight, x.eps
        else:
            arguments.x = x
        if rotary is not None:
            arguments.rotary = rotary
        launch(
            self._kernels[_name(most, epilogue)], (-(-outputs // share), -(-rows // most), 1), _THREADS, [arguments],
            stream, shared=_shared(kernel, most, rows * matrix.stride * normed), dependent=True,
        )  # fmt: skip


def _name(rows: int, epilogue: Epilogue) -> str:
    return f"linear_{rows}_{epilogue.value}"


def _shared(kernel: _Kernel, rows: int, normed: int) -> int:
    """Bytes of shared memory: the ring, two sets of the ranges' sums, and ``normed`` numbers of x."""
    sums = 2 * 4 * _SPLITS * rows * _TILE
    return kernel.ahead * kernel.step * 2 * 16 * _THREADS + sums + REAL * normed


class LargeLinear:
    """y = x Wᵀ of a fixed number of rows by cuBLASLt, biases by an own kernel."""

    def __init__(self, cublas: CublasLt, ops: Ops) -> None:
        self._cublas, self._ops = cublas, ops

    def tune(
        self, linears: Sequence[Linear], x: int, y: int, *, y_stride: int, rows: int, wide: bool = False,
        add: bool = False,
    ) -> None:  # fmt: skip
        """See :meth:`CublasLt.tune`."""
        matrices = [linear.matrix for linear in linears]
        self._cublas.tune(matrices, x, y, rows=rows, y_stride=y_stride, wide=wide, add=add)

    def enqueue(
        self, linear: Linear, x: int, y: int, *, y_stride: int, rows: int, count: int, wide: bool = False,
        add: bool = False, like: int = 0, stream: Stream,
    ) -> None:  # fmt: skip
        """y [rows, outputs] = x [rows, inputs] Wᵀ + bias, or with ``add`` y += that; see :meth:`CublasLt.multiply`."""
        self._cublas.multiply(
            linear.matrix, x, y, rows=rows, y_stride=y_stride, wide=wide, add=add, like=like, stream=stream
        )  # fmt: skip
        if linear.bias:
            self._ops.bias(
                y, linear.bias, wide=wide, width=linear.matrix.outputs, stride=y_stride, rows=rows, count=count,
                stream=stream,
            )  # fmt: skip
