"""The forward pass over packed tokens, for every supported architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blink.engine.reference.cache import PagedCache
from blink.engine.reference.cpu import Cpu
from blink.engine.reference.linear import Linear
from blink.engine.reference.mlp import FeedForward
from blink.model.rope import RopeTable
from blink.model.spec import ModelSpec

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; ``qkv`` has the query's outputs first, then the key's, then the value's."""

    input_norm: F32
    qkv: Linear
    output: Linear
    post_norm: F32
    feed_forward: FeedForward
    q_norm: F32 | None = None
    k_norm: F32 | None = None


@dataclass(frozen=True)
class Weights:
    """All weights of a model; ``embedding`` and ``head`` are one object where they are tied."""

    embedding: Linear
    layers: tuple[Layer, ...]
    norm: F32
    head: Linear


@dataclass(frozen=True)
class Tokens:
    """Packed tokens of a step, see :mod:`blink.engine.seam.batch`; ``rows`` is by token, ``block_tables`` by row."""

    ids: I32
    positions: I32
    kv_index: I32
    rows: I32
    block_tables: I32


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """x / √(mean(x²) + eps) · weight over the last axis."""
    mean = np.square(x).mean(-1, keepdims=True)
    y: F32 = x * (np.float32(1) / np.sqrt(mean + np.float32(eps)))
    y *= weight
    return y


class Transformer:
    """Weights, rotary tables and cache of one model, for sequences up to ``context`` tokens."""

    def __init__(
        self, spec: ModelSpec, weights: Weights, *, context: int, pages: int, page_tokens: int, cpu: Cpu
    ) -> None:
        self.spec, self.weights, self.cpu = spec, weights, cpu
        self.rope = RopeTable(spec.rope, context)
        self.cache = PagedCache(spec.layers, pages, page_tokens, spec.kv_heads, spec.head_dim)

    def hidden(self, tokens: Tokens, observe: Callable[[int, F32], None] | None = None) -> F32:
        """Feed ``tokens``: store their keys and values, return the last layer's output, f32 [tokens, hidden].

        ``observe(i, x)`` sees the embeddings as i = 0 and the output of layer i - 1 as i; it must copy what it keeps.
        """
        x = self.weights.embedding.rows(tokens.ids)
        for i, layer in enumerate(self.weights.layers):
            if observe:
                observe(i, x)
            x += self._attention(i, layer, rms_norm(x, layer.input_norm, self.spec.norm_eps), tokens)
            x += layer.feed_forward(rms_norm(x, layer.post_norm, self.spec.norm_eps))
        if observe:
            observe(self.spec.layers, x)
        return x

    def logits(self, x: F32) -> F32:
        """Next-token logits from rows of :meth:`hidden`, f32 [rows, hidden] → f32 [rows, vocab]."""
        return self.weights.head(rms_norm(x, self.weights.norm, self.spec.norm_eps))

    def _attention(self, i: int, layer: Layer, x: F32, tokens: Tokens) -> F32:
        spec, n = self.spec, len(x)
        qkv = layer.qkv(x)
        q = qkv[:, : spec.q_width].reshape(n, spec.heads, spec.head_dim)
        k = qkv[:, spec.q_width : -spec.kv_width].reshape(n, spec.kv_heads, spec.head_dim)
        v = qkv[:, -spec.kv_width :].reshape(n, spec.kv_heads, spec.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = rms_norm(q, layer.q_norm, spec.norm_eps), rms_norm(k, layer.k_norm, spec.norm_eps)
        self.rope.rotate(q, tokens.positions)
        self.rope.rotate(k, tokens.positions)
        self.cache.keys[i, tokens.kv_index] = k
        self.cache.values[i, tokens.kv_index] = v
        mixed = self.cpu.attend(
            q,
            self.cache.keys[i],
            self.cache.values[i],
            positions=tokens.positions,
            rows=tokens.rows,
            tables=tokens.block_tables,
            page_tokens=self.cache.page_tokens,
            window=spec.windows[i],
        )
        return layer.output(mixed.reshape(n, spec.q_width))
