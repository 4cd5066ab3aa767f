"""What lies between the matrices; see kernels/native/layers.cu and native/step.cu."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_uint32, c_uint64

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.native.shape import Matrix
from blink.engine.seam.batch import STEP, Kind
from blink.engine.seam.engine import DType
from blink.gpu.cuda import Device, Stream, launch
from blink.gpu.memory import DeviceMemory

_LAYERS = ("native_embed", "native_norm", "native_rotate", "native_swiglu", "native_bias")
_THREADS, _CHECK_THREADS, _HEADS = 256, 128, 8
_STATE = STEP.size + 64
"""``StepState`` of the source: the checked copy of the control block, and a few words."""


class CheckedBuffers:
    """The step buffers as later kernels see them: with the checked copy in place of the control block.

    Offers ``dims``, :meth:`address` and ``struct`` as :class:`blink.engine.device.buffers.DeviceBuffers` does.
    """

    def __init__(self, device: Device, buffers: DeviceBuffers) -> None:
        self.real, self.dims = buffers, buffers.dims
        self.state = DeviceMemory(device, _STATE, "the step's state")
        self.struct = (ctypes.c_uint64 * len(buffers.pointers))(*buffers.pointers.tolist())
        self.struct[0] = self.state.address
        self.rows = self.state.address + STEP.offset("rows")
        self.tokens = self.state.address + STEP.offset("tokens")

    def address(self, name: str) -> int:
        """Device address of one buffer. Raises KeyError."""
        return self.state.address if name == "control" else self.real.address(name)

    def close(self) -> None:
        """Free the copy."""
        self.state.free()


class Limits(ctypes.Structure):
    """``StepLimits`` of the source."""

    _fields_ = [(name, c_uint32) for name in (
        "rows", "tokens", "decode", "vocab", "context", "page_tokens", "pages", "lanes", "lane_pages",
    )]  # fmt: skip


class Rotary(ctypes.Structure):
    """``Rotary`` of native/rows.cuh: how queries and keys of one layer are rotated, and where its cache is."""

    _fields_ = [
        *((name, c_uint64) for name in ("cos", "sin", "q_norm", "k_norm", "positions", "kv_index", "keys", "values")),
        ("eps", c_float), *((name, c_uint32) for name in ("dim", "heads", "kv_heads", "head_dim", "page_tokens")),
    ]  # fmt: skip


class Ops:
    """Launches of the small kernels. ``count`` is the device address of how many tokens or rows there are."""

    def __init__(self, device: Device, dtype: DType, buffers: CheckedBuffers) -> None:
        defines = {"BLINK_BF16": 1} if dtype == "bfloat16" else {}
        self._kernels = device.kernels("native/layers.cu", _LAYERS, defines=defines)
        self._kernels |= device.kernels("native/step.cu", ["native_check", "native_done"])
        self._buffers = buffers

    def check(self, limits: Limits, kind: Kind, size: int, stream: Stream) -> None:
        """Begin a step: look at every index once, so that no other kernel needs to."""
        rows = min(size, limits.lanes)
        limits.rows, limits.tokens, limits.decode = rows, size, kind is Kind.DECODE
        arguments = [self._buffers.real.struct, limits, c_uint64(self._buffers.state.address)]
        launch(self._kernels["native_check"], rows, _CHECK_THREADS, arguments, stream)

    def done(self, stream: Stream) -> None:
        """End a step."""
        arguments = [c_uint64(self._buffers.real.address("control")), c_uint64(self._buffers.state.address)]
        launch(self._kernels["native_done"], 1, 1, arguments, stream, dependent=True)

    def embed(self, table: Matrix, x: int, size: int, stream: Stream) -> None:
        """x f32 [size, inputs]: the tokens' rows of ``table``, then zeros."""
        arguments = [
            c_uint64(table.address), c_uint32(table.stride), c_uint64(self._buffers.address("token_ids")),
            c_uint64(self._buffers.tokens), c_uint64(x), c_uint32(table.inputs),
        ]  # fmt: skip
        launch(self._kernels["native_embed"], size, _THREADS, arguments, stream, dependent=True)

    def norm(
        self, x: int, weight: int, eps: float, y: int, *, width: int, stride: int, rows: int, stream: Stream,
        last: bool = False,
    ) -> None:  # fmt: skip
        """RMSNorm of x f32 [tokens, width] to 16 bits; with ``last`` of each row's last token only."""
        b = self._buffers
        arguments = [
            c_uint64(x), c_uint64(weight), c_float(eps), c_uint64(y), c_uint32(width), c_uint32(stride),
            c_uint64(b.rows if last else b.tokens), c_uint64(b.address("row_start") if last else 0),
        ]  # fmt: skip
        launch(self._kernels["native_norm"], rows, _THREADS, arguments, stream, dependent=True)

    def rotate(self, rotary: Rotary, qkv: int, stride: int, size: int, stream: Stream) -> None:
        """Norm and rotate queries in place, keys into the cache, and take the values there."""
        groups = -(-(rotary.heads + 2 * rotary.kv_heads) // _HEADS)
        arguments = [rotary, c_uint64(qkv), c_uint32(stride), c_uint64(self._buffers.tokens)]
        launch(self._kernels["native_rotate"], (size, groups, 1), _THREADS, arguments, stream, dependent=True)

    def swiglu(self, both: int, y: int, *, width: int, both_stride: int, stride: int, size: int, on: Stream) -> None:
        """y = silu(gate) · up, of [tokens, gate and up]."""
        arguments = [
            c_uint64(both), c_uint64(y), c_uint32(width), c_uint32(both_stride), c_uint32(stride),
            c_uint64(self._buffers.tokens),
        ]  # fmt: skip
        grid = (size, -(-width // (8 * _THREADS)), 1)
        launch(self._kernels["native_swiglu"], grid, _THREADS, arguments, on, dependent=True)

    def bias(
        self, y: int, bias: int, *, wide: bool, width: int, stride: int, rows: int, count: int, stream: Stream
    ) -> None:  # fmt: skip
        """y += bias, y of 16 bits or, if ``wide``, f32."""
        arguments = [
            c_uint64(0 if wide else y), c_uint64(y if wide else 0), c_uint64(bias), c_uint32(width), c_uint32(stride),
            c_uint64(count),
        ]  # fmt: skip
        launch(self._kernels["native_bias"], rows, _THREADS, arguments, stream, dependent=True)
