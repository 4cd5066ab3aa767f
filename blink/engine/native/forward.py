"""The kernels of one step, in their order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blink.engine.native.activations import Activations
from blink.engine.native.attention import Attention
from blink.engine.native.cache import Cache
from blink.engine.native.layout import Epilogue, Rotary, StepLimits
from blink.engine.native.linear import SMALL, LargeLinear, Norm, SmallLinear
from blink.engine.native.ops import CheckedBuffers, Ops
from blink.engine.native.shape import gate_up_stride, padded, qkv_stride
from blink.engine.native.weights import Layer, Linear, Weights
from blink.engine.seam.batch import Kind
from blink.gpu.cuda import Stream
from blink.model.spec import ModelSpec

_TUNED = 8
"""Layers whose matrices an algorithm is tried with."""


@dataclass(frozen=True)
class _Step:
    """A shape, and where its work goes. ``few``: the own kernels do the linear layers. ``like``: see
    :meth:`blink.engine.native.cublaslt.CublasLt.multiply`."""

    kind: Kind
    size: int
    few: bool
    like: int
    stream: Stream


class Forward:
    """Enqueues the forward pass over what the step buffers say.

    With ``exact`` one algorithm multiplies each matrix in all decode steps, and one in all prefill steps, so that a
    token's numbers are the same bits in steps of any size. Otherwise each size has what is fastest for it.
    """

    def __init__(
        self, spec: ModelSpec, *, weights: Weights, cache: Cache, activations: Activations, buffers: CheckedBuffers,
        ops: Ops, small: SmallLinear, large: LargeLinear, attention: Attention, rotary: Rotary, limits: StepLimits,
        exact: bool,
    ) -> None:  # fmt: skip
        self._spec, self._weights, self._cache, self._a = spec, weights, cache, activations
        self._buffers, self._ops, self._small, self._large = buffers, ops, small, large
        self._attention, self._rotary, self._limits, self._exact = attention, rotary, limits, exact
        self._head = Linear(weights.head)
        # What the own kernels can rotate as they multiply.
        self._whole_heads = spec.rope.dim == spec.head_dim and spec.head_dim % 16 == 0 and not spec.qk_norm

    def enqueue(self, kind: Kind, size: int, stream: Stream) -> None:
        """From the check of the step to the logits, f32 [rows, vocab] at ``activations.logits``."""
        spec, ops, a, rows = self._spec, self._ops, self._a, min(size, self._limits.lanes)
        like = 0
        if self._exact:
            like = self._limits.lanes if kind is Kind.DECODE else self._buffers.dims["tokens"]
        step = _Step(kind, size, size <= SMALL and not self._exact, like, stream)
        ops.check(replace(self._limits, rows=rows, tokens=size, decode=kind is Kind.DECODE), stream)
        ops.embed(self._weights.embedding, a.x, size, stream)
        for i, layer in enumerate(self._weights.layers):
            self._attend(i, layer, step)
            self._feed_forward(layer, step)
        ops.norm(
            a.x, self._weights.norm, spec.norm_eps, a.normed, width=spec.hidden, stride=padded(spec.hidden), rows=rows,
            stream=stream, last=True,
        )  # fmt: skip
        self._logits(rows, step)

    def tune(self, size: int) -> None:
        """Have cuBLASLt choose its algorithms for steps of ``size``; see its :meth:`tune`."""
        if self._exact or size <= SMALL:
            return
        spec, a, layers = self._spec, self._a, self._weights.layers[:_TUNED]
        hidden, rows = spec.hidden, min(size, self._limits.lanes)
        for linears, x, y, stride, wide in (
            ([layer.qkv for layer in layers], a.normed, a.qkv, qkv_stride(spec), False),
            ([layer.output for layer in layers], a.mixed, a.x, hidden, True),
            ([layer.gate_up for layer in layers], a.normed, a.gate_up, gate_up_stride(spec), False),
            ([layer.down for layer in layers], a.inner, a.x, hidden, True),
        ):
            self._large.tune(linears, x, y, y_stride=stride, rows=size, wide=wide, add=wide)
        self._large.tune([self._head], a.normed, a.logits, y_stride=spec.vocab, rows=rows, wide=True)

    def _attend(self, i: int, layer: Layer, step: _Step) -> None:
        spec, a, stride = self._spec, self._a, qkv_stride(self._spec)
        rotary, x = self._rotary_of(i, layer), self._normed(layer.input_norm, layer.qkv, step)
        if step.few and self._whole_heads:
            self._small.enqueue(
                layer.qkv, Epilogue.ROTATE, x, a.qkv, y_stride=stride, rows=step.size, count=self._buffers.tokens,
                stream=step.stream, rotary=rotary,
            )  # fmt: skip
        else:
            self._product(layer.qkv, step, x=x, y=a.qkv, stride=stride)
            self._ops.rotate(rotary, a.qkv, stride, step.size, step.stream)
        self._attention.enqueue(
            step.kind, step.size, q=a.qkv, q_stride=stride, k=rotary.keys, v=rotary.values, out=a.mixed,
            out_stride=padded(spec.q_width), window=spec.windows[i], stream=step.stream, dependent=True,
        )  # fmt: skip
        self._add(layer.output, step, a.mixed)

    def _feed_forward(self, layer: Layer, step: _Step) -> None:
        spec, a, inner = self._spec, self._a, padded(self._spec.intermediate)
        x = self._normed(layer.post_norm, layer.gate_up, step)
        if step.few:
            self._small.enqueue(
                layer.gate_up, Epilogue.SILU, x, a.inner, y_stride=inner, rows=step.size, count=self._buffers.tokens,
                stream=step.stream,
            )  # fmt: skip
        else:
            both = gate_up_stride(spec)
            self._product(layer.gate_up, step, x=x, y=a.gate_up, stride=both)
            self._ops.swiglu(
                a.gate_up, a.inner, width=spec.intermediate, both_stride=both, stride=inner, size=step.size,
                on=step.stream,
            )  # fmt: skip
        self._add(layer.down, step, a.inner)

    def _rotary_of(self, i: int, layer: Layer) -> Rotary:
        keys, values = self._cache.keys(i), self._cache.values(i)
        return replace(self._rotary, q_norm=layer.q_norm, k_norm=layer.k_norm, keys=keys, values=values)

    def _normed(self, weight: int, linear: Linear, step: _Step) -> int | Norm:
        """The residual stream's norm, for ``linear``: where it is, or how ``linear`` makes it itself."""
        a, spec = self._a, self._spec
        if step.few and self._small.takes_norm(linear.matrix, step.size):
            return Norm(a.x, weight, spec.norm_eps)
        self._ops.norm(
            a.x, weight, spec.norm_eps, a.normed, width=spec.hidden, stride=padded(spec.hidden), rows=step.size,
            stream=step.stream,
        )  # fmt: skip
        return a.normed

    def _product(self, linear: Linear, step: _Step, *, x: int | Norm, y: int, stride: int) -> None:
        count = self._buffers.tokens
        if step.few or isinstance(x, Norm):
            self._small.enqueue(
                linear, Epilogue.STORE, x, y, y_stride=stride, rows=step.size, count=count, stream=step.stream
            )  # fmt: skip
        else:
            self._large.enqueue(
                linear, x, y, y_stride=stride, rows=step.size, count=count, like=step.like, stream=step.stream
            )  # fmt: skip

    def _add(self, linear: Linear, step: _Step, x: int) -> None:
        """The residual stream += a product."""
        count, hidden, to = self._buffers.tokens, self._spec.hidden, self._a.x
        if step.few:
            self._small.enqueue(
                linear, Epilogue.RESIDUAL, x, to, y_stride=hidden, rows=step.size, count=count, stream=step.stream
            )  # fmt: skip
        else:
            self._large.enqueue(
                linear, x, to, y_stride=hidden, rows=step.size, count=count, wide=True, add=True, like=step.like,
                stream=step.stream,
            )  # fmt: skip

    def _logits(self, rows: int, step: _Step) -> None:
        a, vocab = self._a, self._spec.vocab
        if step.few or (step.kind is Kind.PREFILL and self._exact):
            self._small.enqueue(
                self._head, Epilogue.LOGITS, a.normed, a.logits, y_stride=vocab, rows=rows, count=self._buffers.rows,
                stream=step.stream,
            )  # fmt: skip
        else:
            self._large.enqueue(
                self._head, a.normed, a.logits, y_stride=vocab, rows=rows, count=self._buffers.rows, wide=True,
                like=step.like, stream=step.stream,
            )  # fmt: skip
