"""Small GGUF files of every architecture, written as llama.cpp's converter writes them, with what they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FF, EXPERTS, EXPERT_FF, VOCAB = 64, 2, 4, 2, 16, 96, 4, 32, 40
F32 = gguf.GGMLQuantizationType.F32

_QKV = {f"self_attn.{x}_proj.weight": f"attn_{x}.weight" for x in "qkv"}
_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.qkv_proj.weight": "attn_qkv.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.gate_up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    **_QKV,
    **{k.replace(".weight", ".bias"): v.replace(".weight", ".bias") for k, v in _QKV.items()},
    "self_attn.o_proj.bias": "attn_output.bias",
}


@dataclass
class Tiny:
    """A GGUF file and the HuggingFace tensors that a conversion of it must give."""

    path: Path
    tensors: dict[str, np.ndarray]


def hf_tensors(arch: str, seed: int = 0, *, tied: bool = True, bias: bool = False) -> dict[str, np.ndarray]:
    """Random weights under HuggingFace names."""
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.2, shape).astype(np.float32)

    out = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN), "model.norm.weight": 1 + matrix(HIDDEN)}
    if not tied:
        out["lm_head.weight"] = matrix(VOCAB, HIDDEN)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for i in range(LAYERS):
        layer = {"input_layernorm": 1 + matrix(HIDDEN), "post_attention_layernorm": 1 + matrix(HIDDEN)}
        layer["self_attn.o_proj"] = matrix(HIDDEN, q)
        if arch == "phi3":
            layer["self_attn.qkv_proj"] = matrix(q + 2 * kv, HIDDEN)
            layer["mlp.gate_up_proj"] = matrix(2 * FF, HIDDEN)
        else:
            layer |= {f"self_attn.{x}_proj": matrix(n, HIDDEN) for x, n in zip("qkv", (q, kv, kv), strict=True)}
        if arch.startswith("qwen3"):
            layer |= {"self_attn.q_norm": 1 + matrix(HEAD_DIM), "self_attn.k_norm": 1 + matrix(HEAD_DIM)}
        if arch == "qwen3moe":
            layer["mlp.gate"] = matrix(EXPERTS, HIDDEN)
            for e in range(EXPERTS):
                layer[f"mlp.experts.{e}.gate_proj"] = matrix(EXPERT_FF, HIDDEN)
                layer[f"mlp.experts.{e}.up_proj"] = matrix(EXPERT_FF, HIDDEN)
                layer[f"mlp.experts.{e}.down_proj"] = matrix(HIDDEN, EXPERT_FF)
        else:
            layer["mlp.down_proj"] = matrix(HIDDEN, FF)
            if arch != "phi3":
                layer |= {"mlp.gate_proj": matrix(FF, HIDDEN), "mlp.up_proj": matrix(FF, HIDDEN)}
        out |= {f"model.layers.{i}.{name}.weight": a for name, a in layer.items()}
        if bias:
            out |= {
                f"model.layers.{i}.self_attn.{x}_proj.bias": matrix(n)
                for x, n in zip("qkvo", (q, kv, kv, HIDDEN), strict=True)
            }
    return out


def _permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of q and k rows, as its converter states it."""
    shape = weights.shape
    return weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def _gguf_tensors(arch: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    out = {
        "token_embd.weight": tensors["model.embed_tokens.weight"],
        "output_norm.weight": tensors["model.norm.weight"],
    }
    if "lm_head.weight" in tensors:
        out["output.weight"] = tensors["lm_head.weight"]
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        for hf, name in _NAMES.items():
            if prefix + hf in tensors:
                a = tensors[prefix + hf]
                if arch == "llama" and name.startswith(("attn_q.", "attn_k.")):
                    a = _permuted(a, HEADS if name.startswith("attn_q.") else KV_HEADS)
                out[f"blk.{i}.{name}"] = a
        if arch == "qwen3moe":
            for x in ("gate", "up", "down"):
                experts = [tensors[f"{prefix}mlp.experts.{e}.{x}_proj.weight"] for e in range(EXPERTS)]
                out[f"blk.{i}.ffn_{x}_exps.weight"] = np.stack(experts)
    return out


def write(
    path: Path,
    arch: str = "llama",
    *,
    kind: gguf.GGMLQuantizationType = F32,
    tied: bool = True,
    bias: bool = False,
    extra: Mapping[str, np.ndarray] | None = None,
    without: str | None = None,
    values: Mapping[str, Any] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
) -> Tiny:
    """Write a model; matrices are stored as ``kind``, vectors as float32. ``values`` are further metadata."""
    tensors = hf_tensors(arch, tied=tied, bias=bias)
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(256)
    w.add_embedding_length(HIDDEN)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FF)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(10000.0)
    if arch.startswith("qwen3"):
        w.add_key_length(HEAD_DIM)
        w.add_value_length(HEAD_DIM)
    if arch == "qwen3moe":
        w.add_expert_count(EXPERTS)
        w.add_expert_used_count(2)
        w.add_expert_feed_forward_length(EXPERT_FF)
    if arch == "phi3":
        w.add_sliding_window(0)
        w.add_rope_dimension_count(HEAD_DIM)
    for key, value in (values or {}).items():
        add(w, key, value)
    for key, value in (byte_level_tokenizer() if tokenizer is None else tokenizer).items():
        add(w, f"tokenizer.{key}", value)
    expected = dict(tensors)
    for name, a in {**_gguf_tensors(arch, tensors), **(extra or {})}.items():
        if name == without:
            continue
        if kind == F32 or a.ndim == 1:
            w.add_tensor(name, a)
        else:
            w.add_tensor(name, quantize(a, kind), raw_dtype=kind)
    if kind != F32:
        expected = {k: _rounded(k, a, kind) for k, a in tensors.items()}
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return Tiny(path, expected)


def _rounded(name: str, a: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """What quantization leaves of a tensor: blocks lie along rows, so the order of rows does not matter."""
    return a if a.ndim == 1 else dequantize(quantize(a, kind), kind)


def add(w: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a metadata value of the type that its Python type suggests."""
    if isinstance(value, bool):
        w.add_bool(key, value)
    elif isinstance(value, int):
        w.add_uint32(key, value)
    elif isinstance(value, float):
        w.add_float32(key, value)
    elif isinstance(value, str):
        w.add_string(key, value)
    else:
        w.add_array(key, value)


def byte_level_tokenizer(**changes: Any) -> dict[str, Any]:
    """Metadata of a byte-level tokenizer with VOCAB tokens: letters, a few merges and two control tokens."""
    letters = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ", ".", ","]
    merges = ["t h", "th e", "Ġ the", "i n", "a n"]
    tokens = ["<eos>", "<bos>", *letters, *(m.replace(" ", "") for m in merges)]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), VOCAB)]
    types = [3, 3, *[1] * (len(letters) + len(merges))]
    types += [5] * (VOCAB - len(types))
    return {
        "ggml.model": "gpt2",
        "ggml.pre": "gpt-2",
        "ggml.tokens": tokens,
        "ggml.token_type": types,
        "ggml.merges": merges,
        "ggml.eos_token_id": 0,
        "ggml.bos_token_id": 1,
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        **changes,
    }
