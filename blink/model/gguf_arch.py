"""From a GGUF file's metadata and tensor names to a HuggingFace config.json and tensor names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from blink.errors import BlinkError
from blink.model.gguf_file import F32, GgufFile, GgufTensor
from blink.model.safetensors_file import TensorSource
from blink.model.spec import ModelSpec
from blink.model.tensors import check_tensors

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")

_MODEL = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_COMMON = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_SEPARATE_QKV = {f"attn_{x}.{kind}": f"self_attn.{x}_proj.{kind}" for x in "qkv" for kind in ("weight", "bias")} | {
    "attn_output.bias": "self_attn.o_proj.bias"
}
_GATED_MLP = {"ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight"}
_QK_NORM = {"attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight"}
_LAYERS = {
    "llama": _COMMON | _SEPARATE_QKV | _GATED_MLP,
    "phi3": _COMMON | {"attn_qkv.weight": "self_attn.qkv_proj.weight", "ffn_up.weight": "mlp.gate_up_proj.weight"},
    "qwen3": _COMMON | _SEPARATE_QKV | _GATED_MLP | _QK_NORM,
    "qwen3moe": _COMMON | _SEPARATE_QKV | _QK_NORM | {"ffn_gate_inp.weight": "mlp.gate.weight"},
}
# One GGUF tensor [experts, out, in] for what HuggingFace keeps as a tensor for each expert.
_EXPERTS = {"ffn_gate_exps.weight": "gate_proj", "ffn_up_exps.weight": "up_proj", "ffn_down_exps.weight": "down_proj"}
_HF_CLASS = {
    "llama": ("llama", "LlamaForCausalLM"),
    "phi3": ("phi3", "Phi3ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
}
# Read into the configuration, not copied.
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def convert(file: GgufFile) -> tuple[dict[str, Any], list[TensorSource]]:
    """``(config.json, tensors in the file's order)`` of a GGUF model.

    Raises BlinkError for an architecture, a rotary scaling or a tensor that has no counterpart here, and for tensors
    that are missing or do not fit the metadata.
    """
    arch = file.metadata.get("general.architecture")
    if arch not in _LAYERS:
        raise BlinkError(
            f"{file.path} holds the architecture {arch!r}", f"use a model of one of {', '.join(sorted(_LAYERS))}"
        )
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise BlinkError(f"{file.path} is one part of a split model", "merge the parts with `gguf-split --merge`")
    if arch == "llama" and file.metadata.get("llama.expert_count", 0):
        raise BlinkError(f"{file.path} is a mixture of experts of the llama family", "use a dense model or qwen3moe")
    config = _config(file, arch)
    tensors = [out for t in file.tensors.values() for out in _tensors(file, arch, t, config)]
    check_tensors(file.path, ModelSpec.from_config(config), {t.name: t.shape for t in tensors})
    return config, tensors


def _tensors(file: GgufFile, arch: str, tensor: GgufTensor, config: dict[str, Any]) -> Iterator[TensorSource]:
    if tensor.name in _ROPE_TENSORS:
        return
    if tensor.name == "output.weight":
        yield TensorSource("lm_head.weight", tensor.shape, partial(file.rows, tensor))
        return
    if tensor.name in _MODEL:
        yield TensorSource(_MODEL[tensor.name], tensor.shape, partial(file.rows, tensor))
        return
    match = _LAYER.fullmatch(tensor.name)
    layer, suffix = (match[1], match[2]) if match else ("", "")
    prefix = f"model.layers.{layer}."
    if suffix in _LAYERS[arch]:
        name = prefix + _LAYERS[arch][suffix]
        if arch == "llama" and suffix.startswith(("attn_q.", "attn_k.")):
            heads = config["num_attention_heads" if suffix.startswith("attn_q.") else "num_key_value_heads"]
            yield TensorSource(name, tensor.shape, partial(_unpermuted, file, tensor, heads))
        else:
            yield TensorSource(name, tensor.shape, partial(file.rows, tensor))
    elif arch == "qwen3moe" and suffix in _EXPERTS:
        experts, out, width = tensor.shape
        size = tensor.nbytes // experts
        for e in range(experts):
            part = GgufTensor(tensor.name, (out, width), tensor.type, tensor.offset + e * size, size)
            yield TensorSource(
                f"{prefix}mlp.experts.{e}.{_EXPERTS[suffix]}.weight", part.shape, partial(file.rows, part)
            )
    else:
        raise BlinkError(
            f"{file.path}: tensor {tensor.name} has no counterpart in {config['architectures'][0]}",
            "use an unmodified conversion of a supported model",
        )


def _unpermuted(file: GgufFile, tensor: GgufTensor, heads: int) -> list[F32]:
    """Rows of a Llama q or k projection in HuggingFace's order.

    llama.cpp rotates neighbouring pairs and so stores rows (0, d/2, 1, d/2+1, …) of each head of width d;
    HuggingFace rotates halves.
    """
    a = file.array(tensor)
    half = a.shape[0] // heads // 2
    return [a.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(a.shape)]


def _config(file: GgufFile, arch: str) -> dict[str, Any]:
    meta = _Metadata(file, arch)
    model_type, cls = _HF_CLASS[arch]
    hidden, heads = meta.integer("embedding_length"), meta.integer("attention.head_count")
    head_dim = meta.integer("attention.key_length", hidden // heads)
    if meta.integer("attention.value_length", head_dim) != head_dim:
        raise BlinkError(f"{file.path}: keys and values have different widths", "use a model of a supported family")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise BlinkError(f"{file.path} has no token_embd.weight", "name a file with weights, not only a vocabulary")
    config: dict[str, Any] = {
        "architectures": [cls],
        "model_type": model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": meta.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": meta.integer("feed_forward_length"),
        "hidden_act": "silu",
        "rms_norm_eps": meta.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.real("rope.freq_base", 10000.0),
        "max_position_embeddings": meta.integer("context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": "float32",
    }
    scaling = _rope_scaling(meta, config)
    if scaling:
        config["rope_scaling"] = scaling
    if arch == "phi3":
        return config | _phi3(meta, config)
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    return config | _experts(meta) if arch == "qwen3moe" else config


def _phi3(meta: _Metadata, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "partial_rotary_factor": meta.integer("rope.dimension_count", config["head_dim"]) / config["head_dim"],
        "original_max_position_embeddings": meta.integer(
            "rope.scaling.original_context_length", config["max_position_embeddings"]
        ),
        "sliding_window": meta.integer("attention.sliding_window", 0) or None,
    }


def _experts(meta: _Metadata) -> dict[str, Any]:
    return {
        "num_experts": meta.integer("expert_count"),
        "num_experts_per_tok": meta.integer("expert_used_count"),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,  # llama.cpp normalizes for this architecture; the file has no field for it
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _rope_scaling(meta: _Metadata, config: dict[str, Any]) -> dict[str, Any] | None:
    file = meta.file
    if "rope_factors_long.weight" in file.tensors:
        long, short = (file.array(file.tensors[f"rope_factors_{x}.weight"]).ravel() for x in ("long", "short"))
        return {
            "rope_type": "longrope",
            "type": "longrope",
            "long_factor": [shortest(x) for x in long],
            "short_factor": [shortest(x) for x in short],
        }
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file, config)
    kind = meta.text("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": meta.real("rope.scaling.factor")}
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": meta.real("rope.scaling.factor"),
            "original_max_position_embeddings": meta.integer("rope.scaling.original_context_length"),
        }
    raise BlinkError(f"{file.path} scales positions by {kind!r}", "use a model with linear, yarn, llama3 or longrope")


def _llama3_scaling(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """Recover Llama 3's scaling from the divisors of its frequencies, f32[head_dim / 2], that GGUF keeps instead.

    Every published model has low and high frequency factors 1 and 4 over 8192 tokens; the result is checked.
    """
    stored = file.array(file.tensors["rope_freqs.weight"]).ravel()
    factor, low, high, original = float(stored.max()), 1.0, 4.0, 8192
    dim = config["head_dim"]
    wavelength = 2 * np.pi * config["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    smooth = (original / wavelength - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    expected = np.where(wavelength > original / low, factor, np.where(wavelength < original / high, 1.0, between))
    if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-4):
        raise BlinkError(f"{file.path}: rope_freqs.weight is not Llama 3's scaling", "use the HuggingFace checkpoint")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def shortest(value: float | np.float32) -> float:
    """The decimal number with the fewest digits that is the same float32: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))


class _Metadata:
    """Values of the architecture's section of the metadata, with their types checked."""

    def __init__(self, file: GgufFile, arch: str) -> None:
        self.file, self.arch = file, arch

    def _get(self, key: str, default: Any, kinds: tuple[type, ...]) -> Any:
        value = self.file.metadata.get(f"{self.arch}.{key}", default)
        if isinstance(value, list) and value and len(set(value)) == 1:
            value = value[0]  # some converters store one number for each layer
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise BlinkError(
                f"{self.file.path}: {self.arch}.{key} is {'missing' if value is None else repr(value)[:80]}",
                "use a conversion that stores it",
            )
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = int(self._get(key, default, (int,)))
        if value < 0:
            raise BlinkError(f"{self.file.path}: {self.arch}.{key} is {value}", "copy it again from its source")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        return shortest(self._get(key, default, (float, int)))

    def text(self, key: str, default: str) -> str:
        return str(self._get(key, default, (str,)))
