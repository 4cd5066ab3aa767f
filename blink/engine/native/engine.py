"""The native engine: a dense transformer as CUDA graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.native.activations import Activations
from blink.engine.native.arena import Arena
from blink.engine.native.attention import Attention
from blink.engine.native.cache import Cache
from blink.engine.native.cublaslt import CublasLt
from blink.engine.native.forward import Forward
from blink.engine.native.layout import NO_ROTARY, Rotary, StepLimits
from blink.engine.native.linear import SMALL, LargeLinear, SmallLinear
from blink.engine.native.ops import CheckedBuffers, Ops
from blink.engine.native.random import RandomSource
from blink.engine.native.sampler import Sampler
from blink.engine.native.shape import AttentionShape, Matrix, aligned, require_supported
from blink.engine.native.weights import Weights
from blink.engine.seam.batch import Kind
from blink.engine.seam.engine import DType, EngineSettings
from blink.errors import BlinkError
from blink.gpu.cuda import Device, Stream
from blink.model.rope import RopeTable
from blink.model.spec import ModelSpec


class NativeEngine:
    """A :class:`~blink.engine.device.captured.CapturedEngine` over ``buffers``, with a cache of ``pages`` pages.

    ``tensors`` are the checkpoint's, by HuggingFace name, or the seed of random weights that are made on the device.
    ``choices`` is the file of the algorithms that :meth:`tune` has chosen; None keeps them in memory. ``exact`` is
    :class:`blink.engine.native.forward.Forward`'s. Everything is loaded and allocated here;
    :meth:`enqueue` allocates nothing. Raises BlinkError where the model is of a kind that this engine does not run,
    or where the checkpoint does not fit ``spec``. What it takes is :func:`blink.engine.native.memory.needs`.
    """

    def __init__(
        self, device: Device, spec: ModelSpec, tensors: Mapping[str, npt.NDArray[Any]] | int, buffers: DeviceBuffers,
        *, pages: int, page_tokens: int, max_context: int, dtype: DType, exact: bool = False,
        choices: Path | None = None,
    ) -> None:  # fmt: skip
        self.device, self.spec, self.dtype, self.exact = device, spec, dtype, exact
        lanes, tokens, lane_pages = (buffers.dims[n] for n in ("lanes", "tokens", "lane_pages"))
        if max_context > lane_pages * page_tokens:
            raise BlinkError(
                f"max_context: {max_context} tokens exceed the {lane_pages * page_tokens} of a lane's pages",
                "give lanes more pages, or lower max_context",
            )
        settings = EngineSettings(
            lanes=lanes, batch_tokens=tokens, pages=pages, page_tokens=page_tokens, max_context=max_context,
            dtype=dtype, exact=exact,
        )  # fmt: skip
        require_supported(spec, settings)
        self._open = ExitStack()
        try:
            self.weights = self._keep(Weights(device, spec, tensors, dtype))
            self.cache = self._keep(Cache(device, spec, pages, page_tokens))
            self.activations = self._keep(Activations(device, spec, buffers.dims))
            self._buffers = self._keep(CheckedBuffers(device, buffers))
            self._ops = Ops(device, dtype, self._buffers)
            self.cublas = self._keep(CublasLt(device, dtype, choices))
            shape = AttentionShape.of(spec, settings)
            self.attention = self._keep(Attention(device, self._buffers, shape))
            self.sampler = self._keep(Sampler(device, self._buffers, vocab=spec.vocab, max_context=max_context))
            limits = StepLimits(
                rows=lanes, tokens=tokens, decode=0, vocab=spec.vocab, context=max_context, page_tokens=page_tokens,
                pages=pages, lanes=lanes, lane_pages=lane_pages,
            )  # fmt: skip
            self.forward = Forward(
                spec, weights=self.weights, cache=self.cache, activations=self.activations, buffers=self._buffers,
                ops=self._ops, small=SmallLinear(device, dtype), large=LargeLinear(self.cublas, self._ops),
                attention=self.attention, rotary=self._rotary(max_context, page_tokens), limits=limits,
                exact=exact,
            )  # fmt: skip
            if tokens > SMALL:  # once outside of a capture, so that what is loaded lazily is loaded now
                self.enqueue(Kind.PREFILL, tokens, device.stream)
                self._fill_inputs(tokens)
                device.synchronize()
        except BaseException:
            self._open.close()
            raise

    def tune(self, kind: Kind, size: int) -> None:
        """See :class:`blink.engine.device.captured.CapturedEngine`: cuBLASLt's algorithms are chosen by time, once."""
        self.forward.tune(size)
        with contextlib.suppress(OSError):  # where nothing can be kept, the inspection of the graphs says so
            self.cublas.choices.save()

    def enqueue(self, kind: Kind, size: int, stream: Stream) -> None:
        """See :class:`blink.engine.device.captured.CapturedEngine`."""
        self.forward.enqueue(kind, size, stream)
        self.sampler.enqueue(kind, size, self.activations.logits, stream, dependent=True)
        self._ops.done(stream)

    def close(self) -> None:
        """Free everything. No graph of this engine may run."""
        self._open.close()

    def _fill_inputs(self, tokens: int) -> None:
        """Put numbers into what the matrices multiply. Algorithms are timed with them, and a product of the zeros that
        are there takes less power and so runs at a higher clock, at which others are the fastest."""
        source, a = RandomSource(self.device, 0, self.dtype), self.activations
        for address, width in (
            (a.normed, self.spec.hidden), (a.mixed, self.spec.q_width), (a.inner, self.spec.intermediate),
        ):  # fmt: skip
            source.activation(Matrix(tokens, width, address))

    def _keep(self, part: Any) -> Any:
        self._open.callback(part.close)
        return part

    def _rotary(self, context: int, page_tokens: int) -> Rotary:
        table, spec = RopeTable(self.spec.rope, context), self.spec
        half = aligned(table.cos.nbytes)
        arena = self._keep(Arena(self.device, 2 * half, "rotary tables"))
        cos, sin = arena.take(half), arena.take(half)
        arena.write(cos, np.ascontiguousarray(table.cos))
        arena.write(sin, np.ascontiguousarray(table.sin))
        return replace(
            NO_ROTARY, cos=cos, sin=sin, positions=self._buffers.address("positions"),
            kv_index=self._buffers.address("kv_index"),
            eps=spec.norm_eps, dim=spec.rope.dim, heads=spec.heads, kv_heads=spec.kv_heads,
            head_dim=spec.head_dim, page_tokens=page_tokens,
        )  # fmt: skip
