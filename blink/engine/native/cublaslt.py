"""cuBLASLt through ctypes: products of 16-bit matrices with many rows. https://docs.nvidia.com/cuda/cublas

The library is the Python package nvidia-cublas. Only its enumerations that are used here are spelt out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

from cuda import pathfinder

from blink.engine.native.algorithms import Choices
from blink.engine.native.memory import WORKSPACE
from blink.engine.native.shape import Matrix
from blink.engine.seam.engine import DType
from blink.errors import BlinkError
from blink.gpu.cuda import Device, Stream
from blink.gpu.memory import DeviceMemory
from blink.gpu.timing import milliseconds

_COMPUTE_32F = 68
_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
_OP_T = 1
_DESC_TRANSA = 3
_PREF_WORKSPACE = 1
_CANDIDATES = 16
"""Algorithms that are tried for a product; the library itself knows some eight."""
_MANY = 512
"""Rows beyond which a product takes long enough to be timed once."""
_GAIN = 0.98
"""An algorithm is preferred to the library's first where it takes less than this much of its time."""


class _Algo(ctypes.Structure):
    _fields_ = [("data", c_uint64 * 8)]


class _Result(ctypes.Structure):
    _fields_ = [
        ("algo", _Algo), ("workspace", c_size_t), ("state", c_int), ("waves", c_float), ("reserved", c_int * 4),
    ]  # fmt: skip


class CublasLt:
    """Products y = x Wᵀ, or y += x Wᵀ, of ``dtype`` numbers, summed in float32.

    ``choices`` is the file of what :meth:`tune` chose.
    """

    def __init__(self, device: Device, dtype: DType, choices: Path | None = None) -> None:
        try:
            path = pathfinder.load_nvidia_dynamic_lib("cublasLt").abs_path
        except (RuntimeError, pathfinder.DynamicLibNotFoundError) as e:
            raise BlinkError(
                f"cuBLASLt was not found: {' '.join(str(e).split())[:200]}", "install the Python package nvidia-cublas"
            ) from None
        self._device, self._lib, self._dtype = device, ctypes.CDLL(str(path)), dtype
        self._lib.cublasLtGetVersion.restype = c_size_t
        self.version = int(self._lib.cublasLtGetVersion())
        self.choices = Choices(choices, {"gpu": device.name, "cublasLt": str(self.version), "dtype": dtype})
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
            self._release(layouts)
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
        self._launch(*self._plan(w, rows, y_stride, wide, like or rows), w, x, y, add=add, stream=stream)

    def tune(
        self, ws: Sequence[Matrix], x: int, y: int, *, rows: int, y_stride: int, wide: bool = False, add: bool = False
    ) -> None:  # fmt: skip
        """Choose the algorithm of :meth:`multiply` for matrices of the shape of ``ws``, by time, unless it was chosen.

        They are multiplied in turn, as the layers of a step are, so that none finds itself in the L2. ``y`` is
        overwritten. Not within a capture.
        """
        product, launches = _product(ws[0], rows, y_stride, wide), 1 if rows > _MANY else 4
        if self._chosen(product) is not None:
            return
        layouts = self._layouts(ws[0], rows, y_stride, wide)
        algorithms = self._candidates(layouts) + self._others(ws[0], 2 * rows, y_stride, wide, layouts)
        times = [
            milliseconds(self._device, partial(self._all, layouts, a, ws, (x, y), add=add), launches=launches)
            for a in algorithms
        ]
        best = algorithms[times.index(min(times))] if min(times) < _GAIN * times[0] else algorithms[0]
        self.choices.put(product, bytes(best))
        self._release(layouts)
        planned, _ = self._plans.pop((ws[0].outputs, ws[0].stride, rows, y_stride, wide, rows), ([], None))
        self._release(planned)

    def _chosen(self, product: str) -> _Algo | None:
        found = self.choices.get(product)
        return _Algo.from_buffer_copy(found) if found is not None and len(found) == ctypes.sizeof(_Algo) else None

    def _others(self, w: Matrix, rows: int, y_stride: int, wide: bool, layouts: list[c_void_p]) -> list[_Algo]:
        """What the library has for so many rows, where it can multiply those of ``layouts`` too."""
        theirs = self._layouts(w, rows, y_stride, wide)
        found = [algo for algo in self._candidates(theirs) if self._can(algo, layouts)]
        self._release(theirs)
        return found

    def _all(
        self, layouts: list[c_void_p], algo: _Algo, ws: Sequence[Matrix], xy: tuple[int, int], stream: Stream, *,
        add: bool,
    ) -> None:  # fmt: skip
        for w in ws:
            self._launch(layouts, algo, w, *xy, add=add, stream=stream)

    def _release(self, layouts: list[c_void_p]) -> None:
        for layout in layouts:
            self._call("cublasLtMatrixLayoutDestroy", layout)

    def _launch(
        self, layouts: list[c_void_p], algo: _Algo, w: Matrix, x: int, y: int, *, add: bool, stream: Stream
    ) -> None:  # fmt: skip
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
            algo: _Algo | None
            if like != rows:
                algo = self._plan(w, like, y_stride, wide, like)[1]
            else:
                algo = self._chosen(_product(w, rows, y_stride, wide))
            if algo is None or not self._can(algo, layouts):
                algo = self._candidates(layouts)[0]
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

    def _candidates(self, layouts: list[c_void_p]) -> list[_Algo]:
        """The library's algorithms for a product, what it thinks fastest first."""
        a, b, c = layouts
        results, found = (_Result * _CANDIDATES)(), c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, self._desc, a, b, c, c, self._preference,
            c_int(_CANDIDATES), byref(results), byref(found),
        )  # fmt: skip
        if not found.value:
            raise BlinkError("cuBLASLt has no algorithm for a matrix of this model", "report it with the model's name")
        return [result.algo for result in results[: found.value]]

    def _can(self, algo: _Algo, layouts: list[c_void_p]) -> bool:
        a, b, c = layouts
        result = _Result()
        status = self._lib.cublasLtMatmulAlgoCheck(self._handle, self._desc, a, b, c, c, byref(algo), byref(result))
        return bool(status == 0 and result.state == 0 and result.workspace <= WORKSPACE)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._lib, name)(*arguments)
        if status:
            raise BlinkError(f"{name} failed with status {status}", "look at docs/gpu.md for the traps")


def _product(w: Matrix, rows: int, y_stride: int, wide: bool) -> str:
    return f"{rows}x{w.stride} by {w.outputs}, {'f32' if wide else '16 bits'} {y_stride} apart"
