"""Attention over the paged cache: the kernels of kernels/native_attention_*.cu, launched for steps of any shape."""

from __future__ import annotations

import ctypes
import math

from cuda.bindings import driver as cu

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.native.attention_shape import DECODE_HEADS, SPLIT, AttentionShape
from blink.engine.seam.batch import BATCH, Kind
from blink.errors import BlinkError
from blink.gpu.cuda import Device, Stream, allow_shared, launch, resident_blocks
from blink.gpu.memory import DeviceMemory

_DECODE_WARPS = 4
_DECODE_THREADS, _PREFILL_THREADS = 32 * _DECODE_WARPS, 384
_PREFILL_ROWS = 128
_Batch = ctypes.c_uint64 * len(BATCH.arrays)


class _Arguments(ctypes.Structure):
    """AttentionArguments of kernels/native/attention.cuh."""

    _fields_ = (
        ("batch", _Batch),
        ("q", ctypes.c_uint64),
        ("q_stride", ctypes.c_uint64),
        ("keys", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("out", ctypes.c_uint64),
        ("out_stride", ctypes.c_uint64),
        ("partial", ctypes.c_uint64),
        ("finished", ctypes.c_uint64),
        ("heads", ctypes.c_uint32),
        ("kv_heads", ctypes.c_uint32),
        ("page_bits", ctypes.c_uint32),
        ("lane_pages", ctypes.c_uint32),
        ("window", ctypes.c_uint32),
        ("scale_log2", ctypes.c_float),
    )


class Attention:
    """Enqueues attention of one layer; rows, tokens and lengths come from ``buffers`` on the device.

    All layers of a model share one instance, since its scratch memory is free again when a kernel ends. Raises
    BlinkError on a GPU of another architecture than the kernels are for.
    """

    def __init__(self, device: Device, buffers: DeviceBuffers, shape: AttentionShape) -> None:
        self.shape, self._buffers = shape, buffers
        lanes = buffers.dims["lanes"]
        defines = {"HEAD_DIM": shape.head_dim} | ({"BLINK_BF16": 1} if shape.bf16 else {})
        if device.arch != "sm_90":
            raise BlinkError(
                f"the native engine needs a GPU of compute capability 9.0, not code for {device.arch}",
                'use such a GPU, or engine.kind = "reference"',
            )
        self._kernels = {}
        for kind, specific in (("decode", False), ("prefill", True)):
            name = f"native_attention_{kind}"
            self._kernels[kind] = device.kernels(f"{name}.cu", [name], specific=specific, defines=defines)[name]
        self._decode_shared = _decode_shared(shape) + 4 * lanes
        self._prefill_shared = _prefill_shared(shape.head_dim) + 4 * lanes
        allow_shared(self._kernels["decode"], self._decode_shared)
        allow_shared(self._kernels["prefill"], self._prefill_shared)
        self._processors = device.attribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        each = resident_blocks(self._kernels["decode"], _DECODE_THREADS, self._decode_shared)
        self._resident = self._processors * each
        self._partial = DeviceMemory(device, shape.partial_bytes(lanes), "partial attention")
        self._finished = DeviceMemory(device, 4 * lanes * shape.units, "counts of attention's splits")

    def enqueue(
        self, kind: Kind, size: int, *, q: int, q_stride: int, k: int, v: int, out: int, out_stride: int, window: int,
        stream: Stream, dependent: bool = False,
    ) -> None:  # fmt: skip
        """Launch the attention of a DECODE step of up to ``size`` rows or a PREFILL step of up to ``size`` tokens.

        Addresses are the device's. ``q`` is [tokens][q_stride] from the first query head on, ``out`` [tokens]
        [out_stride], both strides in numbers; ``k`` and ``v`` are [pages][kv_heads][page_tokens][head_dim], and have
        the step's own tokens already. A token sees ``window`` positions up to its own (0: all). ``dependent`` is
        :func:`blink.gpu.cuda.launch`'s.
        """
        shape, buffers = self.shape, self._buffers
        arguments = _Arguments(
            batch=_Batch(*buffers.struct),
            q=q,
            q_stride=q_stride,
            keys=k,
            values=v,
            out=out,
            out_stride=out_stride,
            partial=self._partial.address,
            finished=self._finished.address,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            page_bits=shape.page_tokens.bit_length() - 1,
            lane_pages=buffers.dims["lane_pages"],
            window=window,
            scale_log2=shape.scale * math.log2(math.e),
        )
        if kind is Kind.DECODE:
            grid = min(shape.most_splits(size) * shape.units, self._resident)
            launch(
                self._kernels["decode"], grid, _DECODE_THREADS, [arguments], stream,
                shared=self._decode_shared, dependent=dependent,
            )  # fmt: skip
        else:
            rows = min(size, buffers.dims["lanes"])
            tiles = size * shape.group // _PREFILL_ROWS + rows
            grid = min(tiles * shape.kv_heads, self._processors)
            launch(
                self._kernels["prefill"], grid, _PREFILL_THREADS, [arguments], stream,
                shared=self._prefill_shared, dependent=dependent,
            )  # fmt: skip

    def close(self) -> None:
        """Free the scratch memory. Nothing that uses it may run."""
        self._partial.free()
        self._finished.free()


def _decode_shared(shape: AttentionShape) -> int:
    """Bytes for the keys and values of an item, and for the warps' outputs."""
    outputs = _DECODE_WARPS * min(shape.group, DECODE_HEADS) * (shape.head_dim + 8) * 4
    return 2 * SPLIT * -(-shape.head_dim // 64) * 128 + outputs


def _prefill_shared(dim: int) -> int:
    """Bytes for a block's queries, two tiles of keys and of values, and to begin at a multiple of 1024 bytes."""
    columns = 64 if dim > 128 else 128
    return (_PREFILL_ROWS + 4 * columns) * -(-dim // 64) * 128 + 1024
