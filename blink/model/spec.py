"""Architectures: what a checkpoint's ``config.json`` says, checked and in one spelling.

Field meanings follow HuggingFace's configurations of Llama, Phi-3, Qwen3 and Qwen3-MoE, old spelling
(``rope_theta`` and ``rope_scaling``) and new (``rope_parameters``) alike. What the engines cannot compute is refused
here, by name, so that a wrong answer is never served.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from blink.errors import BlinkError

ARCHITECTURES = ("LlamaForCausalLM", "Phi3ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")

_REMEDY = "use a checkpoint of a supported architecture, or correct config.json"


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding: ``kind`` is one of ROPE_KINDS, ``dim`` of each head's dimensions rotate (the first ones).

    ``original_context`` is the context length of pretraining; ``attention_factor`` multiplies cosine and sine. The
    remaining fields belong to the kinds that their names or HuggingFace's documentation of them say.
    """

    kind: str
    theta: float
    dim: int
    original_context: int
    factor: float = 1.0
    attention_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True)
class MoeSpec:
    """Mixture of experts: ``layers`` says for each layer whether it routes; the others have a dense MLP."""

    experts: int
    top_k: int
    intermediate: int
    norm_topk: bool
    layers: tuple[bool, ...]


@dataclass(frozen=True)
class ModelSpec:
    """One decoder-only transformer.

    ``windows`` has for each layer the number of most recent positions that a token attends to, itself included, or 0
    for all. ``max_context`` is what the checkpoint was made for, in tokens.
    """

    architecture: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    max_context: int
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int, ...]
    rope: RopeSpec
    moe: MoeSpec | None = None

    @property
    def q_width(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim

    def is_moe_layer(self, layer: int) -> bool:
        """Whether ``layer`` routes to experts."""
        return self.moe is not None and self.moe.layers[layer]

    def parameters(self) -> int:
        """Number of weights, every matrix once (tied embeddings count once)."""
        total = self.vocab * self.hidden * (1 if self.tied_embeddings else 2) + self.hidden
        qkv, attention = self.q_width + 2 * self.kv_width, self.q_width * self.hidden
        attention += qkv * self.hidden + (qkv + self.hidden if self.attention_bias else 0)
        attention += 2 * self.head_dim if self.qk_norm else 0
        for layer in range(self.layers):
            total += attention + 2 * self.hidden
            if self.moe is not None and self.moe.layers[layer]:
                total += self.moe.experts * self.hidden * (1 + 3 * self.moe.intermediate)
            else:
                total += 3 * self.hidden * self.intermediate
                total += 2 * self.intermediate + self.hidden if self.mlp_bias else 0
        return total

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelSpec:
        """Read a HuggingFace ``config.json``. Raises BlinkError naming the field that is missing or unsupported."""
        c, arch = _Config(config), _architecture(config)
        phi, qwen = arch == "Phi3ForCausalLM", arch.startswith("Qwen3")
        hidden, heads, layers = c.count("hidden_size"), c.count("num_attention_heads"), c.count("num_hidden_layers")
        kv_heads = c.count("num_key_value_heads", heads)
        if heads % kv_heads:
            raise c.wrong("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads={heads}")
        implied = 128 if arch == "Qwen3ForCausalLM" else hidden // heads
        head_dim = c.count("head_dim", implied)
        if phi and head_dim != hidden // heads:
            raise c.wrong("head_dim", f"{head_dim} is not hidden_size / num_attention_heads")
        _refuse_unimplemented(c)
        moe = _moe(c, layers) if arch == "Qwen3MoeForCausalLM" else None
        max_context = c.count("max_position_embeddings")
        return cls(
            architecture=arch,
            vocab=c.count("vocab_size"),
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=c.count("intermediate_size"),
            norm_eps=c.number("rms_norm_eps", 1e-5 if phi else 1e-6),
            max_context=max_context,
            tied_embeddings=c.flag("tie_word_embeddings"),
            attention_bias=not phi and c.flag("attention_bias"),
            mlp_bias=arch == "LlamaForCausalLM" and c.flag("mlp_bias"),
            qk_norm=qwen,
            windows=_windows(c, arch, layers),
            rope=_rope(c, head_dim, max_context, phi),
            moe=moe,
        )


class _Config:
    """Typed reads of a config dict, with errors that name the field."""

    def __init__(self, data: Mapping[str, Any], where: str = "config.json: ") -> None:
        self.data, self.where = data, where

    def wrong(self, name: str, why: str) -> BlinkError:
        return BlinkError(f"{self.where}{name}: {why}", _REMEDY)

    def count(self, name: str, default: int | None = None) -> int:
        value = self.data.get(name)
        value = default if value is None else value
        if value is None:
            raise self.wrong(name, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(name, f"{value!r} is not a positive integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.data.get(name)
        value = default if value is None else value
        if value is None:
            raise self.wrong(name, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.wrong(name, f"{value!r} is not a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.data.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(name, f"{value!r} is not true or false")
        return value

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        value = self.data.get(name)
        if not isinstance(value, list) or len(value) != length:
            raise self.wrong(name, f"is not a list of {length} numbers")
        item = _Config({f"[{i}]": v for i, v in enumerate(value)}, f"{self.where}{name}")
        return tuple(item.number(f"[{i}]") for i in range(length))


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
        raise BlinkError(
            f"config.json: architectures {names!r} is not supported (supported: {', '.join(ARCHITECTURES)})",
            "prepare a checkpoint of a supported architecture",
        )
    return str(names[0])


def _refuse_unimplemented(c: _Config) -> None:
    if c.data.get("hidden_act", "silu") not in ("silu", "swish"):
        raise c.wrong("hidden_act", f"{c.data['hidden_act']!r} is not supported (supported: silu)")
    for name in ("quantization_config", "compression_config"):
        if c.data.get(name) is not None:
            raise c.wrong(name, "quantized checkpoints are not supported (supported: float32, float16, bfloat16)")


def _windows(c: _Config, arch: str, layers: int) -> tuple[int, ...]:
    if arch == "LlamaForCausalLM" or c.data.get("sliding_window") is None:
        return (0,) * layers
    window = c.count("sliding_window")
    if arch == "Phi3ForCausalLM":
        return (window,) * layers
    if not c.flag("use_sliding_window"):
        return (0,) * layers
    if arch == "Qwen3MoeForCausalLM":
        return (window,) * layers
    types = c.data.get("layer_types")
    if types is None:
        full = c.data.get("max_window_layers", 28)
        return tuple(window if layer >= full else 0 for layer in range(layers))
    known = {"sliding_attention": window, "full_attention": 0}
    if not isinstance(types, list) or len(types) != layers or any(t not in known for t in types):
        raise c.wrong("layer_types", f"is not a list of {layers} of {', '.join(known)}")
    return tuple(known[t] for t in types)


def _moe(c: _Config, layers: int) -> MoeSpec:
    experts = c.count("num_experts", c.data.get("num_local_experts"))
    top_k = c.count("num_experts_per_tok")
    if top_k > experts:
        raise c.wrong("num_experts_per_tok", f"{top_k} exceeds num_experts={experts}")
    dense = c.data.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(not isinstance(i, int) or not 0 <= i < layers for i in dense):
        raise c.wrong("mlp_only_layers", f"{dense!r} is not a list of layers below {layers}")
    step = c.count("decoder_sparse_step", 1)
    routed = tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))
    return MoeSpec(experts, top_k, c.count("moe_intermediate_size"), c.flag("norm_topk_prob"), routed)


def _rope(c: _Config, head_dim: int, max_context: int, phi: bool) -> RopeSpec:
    given = c.data.get("rope_parameters") or c.data.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise c.wrong("rope_scaling", f"{given!r} is not an object")
    r = _Config(given, "config.json: rope_scaling.")
    kind = given.get("rope_type", given.get("type", "default"))
    if phi and kind in ("su", "yarn"):  # what the first Phi-3 checkpoints call longrope
        kind = "longrope"
    if kind not in ROPE_KINDS:
        raise r.wrong("rope_type", f"{kind!r} is not supported (supported: {', '.join(ROPE_KINDS)})")
    theta = r.number("rope_theta", c.number("rope_theta", 10000.0))
    partial = r.number("partial_rotary_factor", c.number("partial_rotary_factor", 1.0))
    dim = int(head_dim * partial)
    if partial > 1 or dim < 2 or dim % 2:
        raise c.wrong("partial_rotary_factor", f"{partial} of head_dim={head_dim} is not an even number of dimensions")
    top = c.data.get("original_max_position_embeddings")
    original = c.count("original_max_position_embeddings") if top is not None else None
    if original is None:
        original = r.count("original_max_position_embeddings", max_context)
    if kind in ("default", "linear", "dynamic"):
        return RopeSpec(kind, theta, dim, max_context, 1.0 if kind == "default" else r.number("factor"))
    return _stretched(RopeSpec(kind, theta, dim, original), r, max_context)


def _stretched(rope: RopeSpec, r: _Config, max_context: int) -> RopeSpec:
    """``rope`` with what stretches its context by frequency; its kind is llama3, yarn or longrope."""
    if rope.kind == "llama3":
        low, high = r.number("low_freq_factor"), r.number("high_freq_factor")
        if low >= high:
            raise r.wrong("low_freq_factor", f"{low} is not below high_freq_factor={high}")
        return replace(rope, factor=r.number("factor"), low_freq_factor=low, high_freq_factor=high)
    factor = r.number("factor", max_context / rope.original_context)
    if rope.kind == "yarn":
        return replace(
            rope, factor=factor, attention_factor=_yarn_attention_factor(r, factor),
            beta_fast=r.number("beta_fast", 32.0), beta_slow=r.number("beta_slow", 1.0),
            truncate=r.flag("truncate", True),
        )  # fmt: skip
    scale = math.sqrt(1 + math.log(factor) / math.log(rope.original_context)) if factor > 1 else 1.0
    pairs = rope.dim // 2
    return replace(
        rope, factor=factor, attention_factor=r.number("attention_factor", scale),
        short_factor=r.numbers("short_factor", pairs), long_factor=r.numbers("long_factor", pairs),
    )  # fmt: skip


def _yarn_attention_factor(r: _Config, factor: float) -> float:
    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if r.data.get("attention_factor") is not None:
        return r.number("attention_factor")
    if r.data.get("mscale") and r.data.get("mscale_all_dim"):
        return mscale(r.number("mscale")) / mscale(r.number("mscale_all_dim"))
    return mscale(1.0)
