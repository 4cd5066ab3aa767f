"""Attention over the paged cache: kernels/native/attention_*.cu, launched for steps of any shape."""

from __future__ import annotations

import math

from cuda.bindings import driver as cu

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.native.layout import (
    DECODE,
    PREFILL,
    PREFILL_PAIRS,
    TILE_ALIGN,
    AttentionArguments,
    decode_storage,
    prefill_storage,
)
from blink.engine.native.memory import finished_bytes, partial_bytes
from blink.engine.native.shape import AttentionShape, defines
from blink.engine.seam.batch import Kind
from blink.errors import BlinkError
from blink.gpu.cuda import Device, Stream, allow_shared, resident_blocks
from blink.gpu.kernels import load
from blink.gpu.memory import DeviceMemory


class Attention:
    """Enqueues attention of one layer; rows, tokens and lengths come from ``buffers`` on the device.

    All layers of a model share one instance, since its scratch memory is free again when a kernel ends. Raises
    BlinkError on a GPU of another architecture than the kernels are for.
    """

    def __init__(self, device: Device, buffers: DeviceBuffers, shape: AttentionShape) -> None:
        self.shape, self._buffers = shape, buffers
        lanes = buffers.dims["lanes"]
        if device.arch != "sm_90":
            raise BlinkError(
                f"the native engine needs a GPU of compute capability 9.0, not code for {device.arch}",
                'use such a GPU, or engine.kind = "reference"',
            )
        macros = {"HEAD_DIM": shape.head_dim} | defines(shape.dtype)
        self._decode = load(device, DECODE, defines=macros)[DECODE.name]
        self._prefill = load(device, PREFILL, specific=True, defines=macros)[PREFILL.name]
        self._decode_shared = decode_storage(shape.head_dim, shape.group) + 4 * lanes
        self._prefill_shared = TILE_ALIGN + prefill_storage(shape.head_dim) + 4 * lanes
        allow_shared(self._decode.handle, self._decode_shared)
        allow_shared(self._prefill.handle, self._prefill_shared)
        self._processors = device.attribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        each = resident_blocks(self._decode.handle, DECODE.threads, self._decode_shared)
        self._resident = self._processors * each
        self._partial = DeviceMemory(device, partial_bytes(shape, lanes), "partial attention")
        self._finished = DeviceMemory(device, finished_bytes(shape, lanes), "counts of attention's splits")

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
        arguments = AttentionArguments(
            batch=buffers.pointers,
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
            self._decode.enqueue(grid, arguments, stream, shared=self._decode_shared, dependent=dependent)
        else:
            rows = min(size, buffers.dims["lanes"])
            tiles = size * shape.group // PREFILL_PAIRS + rows
            grid = min(tiles * shape.kv_heads, self._processors)
            self._prefill.enqueue(grid, arguments, stream, shared=self._prefill_shared, dependent=dependent)

    def close(self) -> None:
        """Free the scratch memory. Nothing that uses it may run."""
        self._partial.free()
        self._finished.free()
