"""Linear layers: own kernels for few rows, cuBLASLt for many; see kernels/native_linear.cu."""

from __future__ import annotations

import ctypes
import enum
from dataclasses import dataclass

from cuda.bindings import driver as cuda

from blink.engine.native.cublaslt import CublasLt
from blink.engine.native.ops import Ops
from blink.engine.native.shape import DType
from blink.engine.native.weights import Linear
from blink.gpu.cuda import Device, Stream, allow_shared, launch

SMALL = 16
"""Steps of up to this many tokens use the own kernels."""
_THREADS, _SPLITS, _TILE, _STEP = 256, 8, 16, 2


class Epilogue(enum.Enum):
    """What happens to a product: stored (16 bits); added to y (f32); SwiGLU of its halves (16 bits); stored (f32)."""

    STORE = "store"
    RESIDUAL = "residual"
    SILU = "silu"
    LOGITS = "logits"


@dataclass(frozen=True)
class _Kernel:
    """One of the source's: ``rows`` of x a block, ``tiles`` of 16 outputs at once, ``ahead`` steps on their way,
    ``resident`` blocks on a multiprocessor."""

    rows: int
    tiles: int
    ahead: int
    resident: int

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the ring, and one or two sets of the ranges' sums."""
        part = 4 * self.rows * self.tiles * _TILE * _SPLITS
        return self.ahead * _STEP * self.tiles * 2 * 16 * _THREADS + part * (2 if self.rows * self.tiles <= 16 else 1)


_KERNELS = (_Kernel(8, 1, 6, 2), _Kernel(16, 1, 5, 2))


class _Arguments(ctypes.Structure):
    """``Layer`` of the source."""

    _fields_ = [
        ("w", ctypes.c_uint64), ("x", ctypes.c_uint64), ("y", ctypes.c_uint64), ("bias", ctypes.c_uint64),
        ("outputs", ctypes.c_uint32), ("k", ctypes.c_uint32), ("x_stride", ctypes.c_uint32),
        ("y_stride", ctypes.c_uint32), ("count", ctypes.c_uint64), ("share", ctypes.c_uint32),
    ]  # fmt: skip


class SmallLinear:
    """y = x Wᵀ by the own kernels: a row's bits depend on that row of x alone, however many rows there are."""

    def __init__(self, device: Device, dtype: DType) -> None:
        names = [f"linear_{k.rows}_{e.value}" for k in _KERNELS for e in Epilogue]
        defines = {"BLINK_BF16": 1} if dtype == "bfloat16" else {}
        self._kernels = device.kernels("native_linear.cu", names, defines=defines)
        processors = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self._processors = device.attribute(processors)
        for k in _KERNELS:
            for e in Epilogue:
                allow_shared(self._kernels[f"linear_{k.rows}_{e.value}"], k.shared)

    def enqueue(
        self, linear: Linear, epilogue: Epilogue, x: int, y: int, *, y_stride: int, rows: int, count: int,
        stream: Stream,
    ) -> None:  # fmt: skip
        """Multiply up to ``rows`` rows at ``x``, padded as the matrix is; the word at ``count`` says how many."""
        kernel = next((k for k in _KERNELS if k.rows >= rows), _KERNELS[-1])
        matrix = linear.matrix
        outputs = matrix.outputs // 2 if epilogue is Epilogue.SILU else matrix.outputs
        share = 8 * -(-outputs // (8 * self._processors * kernel.resident))  # as even as groups of eight allow
        arguments = _Arguments(
            matrix.address, x, y, linear.bias, outputs, matrix.stride, matrix.stride, y_stride, count, share
        )  # fmt: skip
        launch(
            self._kernels[f"linear_{kernel.rows}_{epilogue.value}"], (-(-outputs // share), -(-rows // kernel.rows), 1),
            _THREADS, [arguments], stream, shared=kernel.shared, dependent=True,
        )  # fmt: skip


class LargeLinear:
    """y = x Wᵀ of a fixed number of rows by cuBLASLt, biases by an own kernel."""

    def __init__(self, cublas: CublasLt, ops: Ops) -> None:
        self._cublas, self._ops = cublas, ops

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
