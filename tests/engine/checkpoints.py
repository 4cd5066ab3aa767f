"""Small random checkpoints of every architecture: config.json as published ones spell it, weights from a seed."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from blink.model.spec import ModelSpec

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MODEL_TYPES = {"Llama": "llama", "Phi3": "phi3", "Qwen3": "qwen3", "Qwen3Moe": "qwen3_moe"}


def _config(family: str, **values: Any) -> dict[str, Any]:
    names = {"architectures": [f"{family}ForCausalLM"], "model_type": MODEL_TYPES[family]}
    return {k: v for k, v in {**names, **SIZES, **values}.items() if v is not None}


def _llama(**values: Any) -> dict[str, Any]:
    return _config("Llama", **values)


def _phi3(**values: Any) -> dict[str, Any]:
    return _config("Phi3", **({"original_max_position_embeddings": 256} | values))


def _qwen3(**values: Any) -> dict[str, Any]:
    return _config("Qwen3", head_dim=32, **values)


def _moe(**values: Any) -> dict[str, Any]:
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
    return _config("Qwen3Moe", head_dim=32, **({"decoder_sparse_step": 1} | sizes | values))


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {"short_factor": [1.0 + 0.1 * i for i in range(6)], "long_factor": [1.0 + 0.7 * i for i in range(6)]}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _llama(),
    "llama-mha-tied": _llama(num_key_value_heads=4, tie_word_embeddings=True),
    "llama-biases": _llama(attention_bias=True, mlp_bias=True),
    "llama-head-dim": _llama(head_dim=24),
    "llama-odd-sizes": _llama(vocab_size=317, intermediate_size=91, hidden_size=60, num_attention_heads=6),
    "llama-linear": _llama(rope_scaling={"type": "linear", "factor": 2.0}),
    "llama-dynamic": _llama(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    "llama3": _llama(rope_theta=5e5, rope_scaling={"rope_type": "llama3", **LLAMA3}),
    "llama3-new-spelling": _llama(
        rope_theta=None, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}
    ),
    "phi3": _phi3(),
    "phi3-window": _phi3(sliding_window=24),
    "phi3-partial": _phi3(partial_rotary_factor=0.75),
    "phi3-longrope": _phi3(
        original_max_position_embeddings=64, partial_rotary_factor=0.75, rope_scaling={"type": "longrope", **LONGROPE}
    ),
    "phi3-su": _phi3(
        original_max_position_embeddings=64,
        partial_rotary_factor=0.75,
        num_key_value_heads=4,
        rope_scaling={"type": "su", **LONGROPE},
    ),
    "qwen3": _qwen3(),
    "qwen3-tied": _qwen3(tie_word_embeddings=True, attention_bias=True),
    "qwen3-yarn": _qwen3(rope_theta=1e6, rope_scaling={"rope_type": "yarn", **YARN}),
    "qwen3-window": _qwen3(use_sliding_window=True, sliding_window=16, max_window_layers=1),
    "qwen3-unused-window": _qwen3(use_sliding_window=False, sliding_window=16, max_window_layers=1),
    "qwen3-moe": _moe(),
    "qwen3-moe-mixed": _moe(mlp_only_layers=[0], norm_topk_prob=False),
    "qwen3-moe-sparse-step": _moe(decoder_sparse_step=2, attention_bias=True),
    "qwen3-moe-window": _moe(use_sliding_window=True, sliding_window=20),
}


def spec(name: str) -> ModelSpec:
    """The architecture of that checkpoint."""
    return ModelSpec.from_config(CONFIGS[name])


def tensors(name: str) -> dict[str, np.ndarray]:
    """Its weights, float32: of a size that makes hidden states and logits of order 1, the same on every machine."""
    s = spec(name)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    made: dict[str, np.ndarray] = {}

    def matrix(at: str, outputs: int, inputs: int, bias: bool = False, scale: float | None = None) -> None:
        scale = 1.5 * inputs**-0.5 if scale is None else scale
        made[at + ".weight"] = (scale * rng.standard_normal((outputs, inputs))).astype(np.float32)
        if bias:
            made[at + ".bias"] = (0.2 * rng.standard_normal(outputs)).astype(np.float32)

    def norm(at: str, width: int) -> None:
        made[at + ".weight"] = rng.uniform(0.5, 1.5, width).astype(np.float32)

    def mlp(at: str, width: int) -> None:
        if s.architecture == "Phi3ForCausalLM":
            matrix(at + "gate_up_proj", 2 * width, s.hidden)
        else:
            matrix(at + "gate_proj", width, s.hidden, s.mlp_bias)
            matrix(at + "up_proj", width, s.hidden, s.mlp_bias)
        matrix(at + "down_proj", s.hidden, width, s.mlp_bias)

    matrix("model.embed_tokens", s.vocab, s.hidden, scale=1.0)
    for i in range(s.layers):
        at = f"model.layers.{i}."
        norm(at + "input_layernorm", s.hidden)
        if s.architecture == "Phi3ForCausalLM":
            matrix(at + "self_attn.qkv_proj", s.q_width + 2 * s.kv_width, s.hidden)
        else:
            matrix(at + "self_attn.q_proj", s.q_width, s.hidden, s.attention_bias)
            matrix(at + "self_attn.k_proj", s.kv_width, s.hidden, s.attention_bias)
            matrix(at + "self_attn.v_proj", s.kv_width, s.hidden, s.attention_bias)
        matrix(at + "self_attn.o_proj", s.hidden, s.q_width, s.attention_bias)
        if s.qk_norm:
            norm(at + "self_attn.q_norm", s.head_dim)
            norm(at + "self_attn.k_norm", s.head_dim)
        norm(at + "post_attention_layernorm", s.hidden)
        if s.moe is not None and s.moe.layers[i]:
            matrix(at + "mlp.gate", s.moe.experts, s.hidden)
            for e in range(s.moe.experts):
                mlp(f"{at}mlp.experts.{e}.", s.moe.intermediate)
        else:
            mlp(at + "mlp.", s.intermediate)
    norm("model.norm", s.hidden)
    if not s.tied_embeddings:
        matrix("lm_head", s.vocab, s.hidden)
    return made


def save(name: str, folder: Path) -> None:
    """Write config.json and model.safetensors, which transformers loads as a published checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name], indent=2))
    save_file(tensors(name), folder / "model.safetensors", metadata={"format": "pt"})


def prompt(name: str, length: int, seed: int = 7) -> list[int]:
    """Random token ids."""
    return [int(t) for t in np.random.default_rng(seed).integers(3, spec(name).vocab, length)]


def engine_context(name: str) -> int:
    """The engine's context in comparisons: where longrope's short factors hold, as in transformers for short texts."""
    return 64 if spec(name).rope.kind == "longrope" else 256
