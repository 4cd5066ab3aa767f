"""Sampling on the device: docs/sampling.md by kernels/native/sample.cu, for steps of any shape."""

from __future__ import annotations

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.native.layout import SAMPLE, SAMPLE_CLUSTER, SampleArguments
from blink.engine.native.memory import block_bytes, sampler_bytes, spills
from blink.engine.native.shape import warp_ids
from blink.engine.seam.batch import Kind
from blink.gpu.cuda import Device, Stream, allow_shared
from blink.gpu.kernels import load
from blink.gpu.memory import DeviceMemory

_ITEM = 4


class Sampler:
    """Chooses the tokens of a step, and remembers what every lane was fed, which penalties count.

    ``max_context`` bounds positions. Raises BlinkError where vocabulary or context are too large.
    """

    def __init__(self, device: Device, buffers: DeviceBuffers, *, vocab: int, max_context: int) -> None:
        lanes = buffers.dims["lanes"]
        self._buffers, self._vocab, self._context = buffers, vocab, max_context
        size = sampler_bytes(vocab=vocab, lanes=lanes, max_context=max_context)
        self._kernel = load(device, SAMPLE)[SAMPLE.name]
        self._spills = spills(vocab)
        self._shared = 0 if self._spills else block_bytes(vocab)
        allow_shared(self._kernel.handle, self._shared)
        self._memory = DeviceMemory(device, size, "the lanes' tokens")
        # Logits come first where they are here: they are read 16 bytes at a time.
        self._fed = self._memory.address + size - _ITEM * lanes * max_context

    def enqueue(self, kind: Kind, size: int, logits: int, stream: Stream, *, dependent: bool = False) -> None:
        """Launch the sampling of a step of up to ``size`` rows, or of ``size`` tokens with PREFILL.

        ``logits`` is the device address of f32 [rows][vocab], of which the rows to be sampled are read. Rows that have
        no token get -1. ``dependent`` is :func:`blink.gpu.cuda.launch`'s.
        """
        rows = size if kind is Kind.DECODE else min(size, self._buffers.dims["lanes"])
        arguments = SampleArguments(
            batch=self._buffers.pointers,
            logits=logits,
            fed=self._fed,
            spill=self._memory.address if self._spills else 0,
            context=self._context,
            vocab=self._vocab,
            range=warp_ids(self._vocab),
        )
        self._kernel.enqueue(rows * SAMPLE_CLUSTER, arguments, stream, shared=self._shared, dependent=dependent)

    def close(self) -> None:
        """Free the memory. Nothing that uses it may run."""
        self._memory.free()
