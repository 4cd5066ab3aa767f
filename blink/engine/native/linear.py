"""Linear layers: own kernels for few rows, cuBLASLt for many; see kernels/native/linear.cu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuda.bindings import driver as cu

from blink.engine.native.cublaslt import CublasLt
from blink.engine.native.layout import (
    LINEAR_KERNELS,
    LINEAR_NORMED,
    LINEAR_ROWS,
    NO_ROTARY,
    Epilogue,
    LinearArguments,
    Rotary,
)
from blink.engine.native.ops import Ops
from blink.engine.native.shape import REAL, Matrix, defines
from blink.engine.native.weights import Linear
from blink.engine.seam.engine import DType
from blink.gpu.cuda import Device, Stream, allow_shared
from blink.gpu.kernels import load

SMALL = LINEAR_ROWS
"""Tokens up to which the own kernels do the whole step."""
NORMED_SIZE = 7680
"""Numbers of rows that the own kernels can make by RMSNorm themselves: what shared memory holds."""
_KERNELS = {(kernel.rows, kernel.epilogue): kernel for kernel in LINEAR_KERNELS}


@dataclass(frozen=True)
class Norm:
    """x is made of f32 rows at device address ``of``, by RMSNorm with f32 ``weight`` and ``eps``."""

    of: int
    weight: int
    eps: float


class SmallLinear:
    """y = x Wᵀ by the own kernels: a row's bits depend on that row of x alone, however many rows there are."""

    def __init__(self, device: Device, dtype: DType) -> None:
        self._kernels = load(device, *(kernel.entry for kernel in LINEAR_KERNELS), defines=defines(dtype))
        processors = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self._processors = device.attribute(processors)
        for kernel in LINEAR_KERNELS:
            normed = REAL * NORMED_SIZE if kernel.rows == LINEAR_NORMED else 0
            allow_shared(self._kernels[kernel.name].handle, kernel.storage + normed)

    def takes_norm(self, matrix: Matrix, rows: int) -> bool:
        """Whether :meth:`enqueue` can make its x itself."""
        return rows <= LINEAR_NORMED and rows * matrix.stride <= NORMED_SIZE

    def enqueue(
        self, linear: Linear, epilogue: Epilogue, x: int | Norm, y: int, *, y_stride: int, rows: int, count: int,
        stream: Stream, rotary: Rotary | None = None,
    ) -> None:  # fmt: skip
        """Multiply up to ``rows`` rows at ``x``, padded as the matrix is; the word at ``count`` says how many.

        ``rotary`` is ROTATE's: it rotates whole heads, and has no norms.
        """
        matrix, made = linear.matrix, isinstance(x, Norm)
        kernel = _KERNELS[LINEAR_NORMED if made else LINEAR_ROWS, epilogue]
        outputs = matrix.outputs // 2 if epilogue in (Epilogue.SILU, Epilogue.ROTATE) else matrix.outputs
        share = 8 * -(-outputs // (8 * self._processors * kernel.resident))  # as even as groups of eight allow
        norm = x if isinstance(x, Norm) else Norm(0, 0, 0)
        arguments = LinearArguments(
            w=matrix.address, x=0 if isinstance(x, Norm) else x, y=y, bias=linear.bias, outputs=outputs,
            k=matrix.stride, x_stride=matrix.stride, y_stride=y_stride, rows=count, share=share, width=matrix.inputs,
            normed=norm.of, weight=norm.weight, eps=norm.eps, rotary=rotary or NO_ROTARY,
        )  # fmt: skip
        self._kernels[kernel.name].enqueue(
            (-(-outputs // share), -(-rows // kernel.rows), 1), arguments, stream,
            shared=kernel.storage + REAL * rows * matrix.stride * made, dependent=True,
        )  # fmt: skip


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
