"""Bindings of libblink_cpu: the operations of the reference engine whose rounding must not depend on the batch.

``kernels/reference/cpu_engine.cpp`` says why they are not NumPy's. Arrays are C-contiguous float32 and int32.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

import numpy as np
import numpy.typing as npt

from blink.core import load

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

PANEL = 16


@cache
def _library() -> ctypes.CDLL:
    lib = load("libblink_cpu.so")
    p, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, args in (
        ("blink_pool_create", p, [ctypes.c_int]),
        ("blink_pool_destroy", None, [p]),
        ("blink_pack", None, [p, p, size, size, size, p]),
        ("blink_linear", None, [p, p, size, size, p, size, p]),
        ("blink_attend", None, [p, p, *[size] * 4, *[p] * 5, *[size] * 3, p]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, args
    return lib


def empty_panels(outputs: int, inputs: int) -> F32:
    """Room for a matrix [outputs, inputs] in panels: f32 [ceil(outputs / 16), inputs, 16], 64-byte aligned, zeros."""
    shape = (-(-outputs // PANEL), inputs, PANEL)
    raw = np.zeros(int(np.prod(shape)) + PANEL, np.float32)
    start = -raw.ctypes.data % 64 // 4
    return raw[start : start + int(np.prod(shape))].reshape(shape)


class Cpu:
    """``threads`` CPU threads, the caller included (all that the process may use by default), and what they compute.

    One thread at a time may call. Indices are not checked here, so callers pass only what the engine has checked.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._lib = _library()
        self._pool: int | None = self._lib.blink_pool_create(threads or len(os.sched_getaffinity(0)))

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._lib.blink_pool_destroy(self._pool)
            self._pool = None

    def pack(self, rows: F32, start: int, panels: F32) -> None:
        """Store ``rows``, f32 [n, inputs], as rows start to start + n of the matrix in ``panels``."""
        rows = np.ascontiguousarray(rows)
        self._lib.blink_pack(self._pool, rows.ctypes.data, len(rows), rows.shape[1], start, panels.ctypes.data)

    def linear(self, x: F32, panels: F32, outputs: int) -> F32:
        """x Wᵀ, f32 [rows, outputs], for x f32 [rows, inputs] and W in ``panels``."""
        x = np.ascontiguousarray(x)
        y = np.empty((len(x), outputs), np.float32)
        self._lib.blink_linear(
            self._pool, x.ctypes.data, len(x), x.shape[1], panels.ctypes.data, outputs, y.ctypes.data
        )  # fmt: skip
        return y

    def attend(
        self, q: F32, keys: F32, values: F32, *, positions: I32, rows: I32, tables: I32, page_tokens: int, window: int
    ) -> F32:
        """Softmax(q kᵀ / √d) v per token, over positions max(0, p - window + 1) to p of its row (window 0: all).

        ``q`` f32 [tokens, heads, dim]; ``keys`` and ``values`` f32 [entries, kv_heads, dim]; ``tables`` i32
        [rows, pages], indexed by ``rows``, i32 [tokens]. Returns f32 [tokens, heads, dim].
        """
        q = np.ascontiguousarray(q)
        tokens, heads, dim = q.shape
        out = np.empty_like(q)
        self._lib.blink_attend(
            self._pool, q.ctypes.data, tokens, heads, keys.shape[1], dim, keys.ctypes.data, values.ctypes.data,
            positions.ctypes.data, rows.ctypes.data, tables.ctypes.data, tables.shape[1], page_tokens, window,
            out.ctypes.data,
        )  # fmt: skip
        return out
