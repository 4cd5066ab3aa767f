"""cuBLASLt through ctypes: products of 16-bit matrices with many rows. https://docs.nvidia.com/cuda/cublas

The library is the Python package nvidia-cublas. Only its enumerations that are used here are spelt out.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

from cuda import pathfinder

from blink.engine.native.shape import DType, Matrix
from blink.engine.native.sizes import WORKSPACE
from blink.errors import BlinkError
from blink.gpu.cuda import Device, Stream
from blink.gpu.memory import DeviceMemory

_COMPUTE_32F = 68
_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
_OP_T = 1
_DESC_TRANSA = 3
_PREF_WORKSPACE = 1


class _Algo(ctypes.Structure):
    _fields_ = [("data", c_uint64 * 8)]


class _Result(ctypes.Structure):
    _fields_ = [
        ("algo", _Algo), ("workspace", c_size_t), ("state", c_int), ("waves", c_float), ("reserved", c_int * 4),
    ]  # fmt: skip


class CublasLt:
    """Products y = x Wᵀ, or y += x Wᵀ, of ``dtype`` numbers, summed in float32."""

    def __init__(self, device: Device, dtype: DType) -> None:
        try:
            path = pathfinder.load_nvidia_dynamic_lib("cublasLt").abs_path
        except (RuntimeError, pathfinder.DynamicLibNotFoundError) as e:
            raise BlinkError(
                f"cuBLASLt was not found: {' '.join(str(e).split())[:200]}", "install the Python package nvidia-cublas"
            ) from None
        self._lib, self._dtype = ctypes.CDLL(str(path)), dtype
        self._lib.cublasLtGetVersion.restype = c_size_t
        self.version = int(self._lib.cublasLtGetVersion())
        self._handle = c_void_p()
        self._call("cublasLtCreate", byref(self._handle))
        self._workspace = DeviceMemory(device, WORKSPACE, "cuBLASLt")
        self._desc, op = c_void_p(), c_int(_OP_T)
        self._call("cublasLtMatmulDescCreate", byref(self._desc), c_int(_COMPUTE_32F), c_int(_TYPES["float32"]))
        self._call("cublasLtMatmulDescSetAttribute", self._desc, c_int(_DESC_TRANSA), byref(op), c_size_t(4))
        self._preference, size = c_void_p(), c_uint64(WORKSPACE)
        self._call("cublasLtMatmulPreferenceCreate", byref(self._preference))
        self._call(
            "cublasLtMatmulPreferenceSetAttribute", self._preference, c_int(_PREF_WORKSPACE), byref(size), c_size_t(8)
        )
        self._plans: dict[tuple[int, ...], tuple[list[c_void_p], _Algo]] = {}

    def close(self) -> None:
        """Release everything. Nothing that was captured may run afterwards."""
        for layouts, _ in self._plans.values():
            for layout in layouts:
                self._call("cublasLtMatrixLayoutDestroy", layout)
        self._plans = {}
        self._workspace.free()
        if self._handle:
            self._call("cublasLtDestroy", self._handle)
            self._handle = c_void_p()

    def multiply(
        self, w: Matrix, x: int, y: int, *, rows: int, y_stride: int, wide: bool = False, add: bool = False,
        like: int = 0, stream: Stream,
    ) -> None:  # fmt: skip
        """y [rows, outputs] = x [rows, inputs] Wᵀ, at device addresses ``x`` and ``y``; with ``add``, y += that.

        y is of 16 bits, or if ``wide`` float32, in rows ``y_stride`` numbers apart. The algorithm depends on the shapes
        alone; it is the one that suits ``like`` rows, if that is given and it can.
        """
        layouts, algo = self._plan(w, rows, y_stride, wide, like or rows)
        one, beta = c_float(1), c_float(1 if add else 0)
        a, b, c = layouts
        self._call(
            "cublasLtMatmul", self._handle, self._desc, byref(one), c_void_p(w.address), a, c_void_p(x), b,
            byref(beta), c_void_p(y), c, c_void_p(y), c, byref(algo), c_void_p(self._workspace.address),
            c_size_t(WORKSPACE), c_void_p(int(stream)),
        )  # fmt: skip

    def _plan(self, w: Matrix, rows: int, y_stride: int, wide: bool, like: int) -> tuple[list[c_void_p], _Algo]:
        key = (w.outputs, w.stride, rows, y_stride, wide, like)
        if key not in self._plans:
            layouts = self._layouts(w, rows, y_stride, wide)
            algo = None if like == rows else self._plan(w, like, y_stride, wide, like)[1]
            if algo is None or not self._can(algo, layouts):
                algo = self._best(layouts)
            self._plans[key] = layouts, algo
        return self._plans[key]

    def _layouts(self, w: Matrix, rows: int, y_stride: int, wide: bool) -> list[c_void_p]:
        """Of W, x and y, as the library sees them: by columns, and so transposed."""
        made = []
        inputs, output = _TYPES[self._dtype], _TYPES["float32" if wide else self._dtype]
        for kind, height, width, stride in (
            (inputs, w.stride, w.outputs, w.stride),
            (inputs, w.stride, rows, w.stride),
            (output, w.outputs, rows, y_stride),
        ):
            layout = c_void_p()
            self._call(
                "cublasLtMatrixLayoutCreate", byref(layout), c_int(kind), c_uint64(height), c_uint64(width),
                c_int64(stride),
            )  # fmt: skip
            made.append(layout)
        return made

    def _best(self, layouts: list[c_void_p]) -> _Algo:
        a, b, c = layouts
        result, found = _Result(), c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, self._desc, a, b, c, c, self._preference, c_int(1),
            byref(result), byref(found),
        )  # fmt: skip
        if not found.value:
            raise BlinkError("cuBLASLt has no algorithm for a matrix of this model", "report it with the model's name")
        algo: _Algo = result.algo
        return algo

    def _can(self, algo: _Algo, layouts: list[c_void_p]) -> bool:
        a, b, c = layouts
        result = _Result()
        status = self._lib.cublasLtMatmulAlgoCheck(self._handle, self._desc, a, b, c, c, byref(algo), byref(result))
        return bool(status == 0 and result.state == 0 and result.workspace <= WORKSPACE)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._lib, name)(*arguments)
        if status:
            raise BlinkError(f"{name} failed with status {status}", "look at docs/gpu.md for the traps")
