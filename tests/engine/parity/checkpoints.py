"""Small random checkpoints of every architecture, made by transformers: configurations by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}


def _longrope(pairs: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
        "long_factor": [1.0 + 0.7 * i for i in range(pairs)],
    }


MOE = {
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True, "head_dim": 32,
}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-mha-tied": ("Llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("Llama", {"head_dim": 24}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama-dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 64}}),
    "phi3": ("Phi3", {"original_max_position_embeddings": 256}),
    "phi3-window": ("Phi3", {"original_max_position_embeddings": 256, "sliding_window": 24}),
    "phi3-partial": (
        "Phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
         "original_max_position_embeddings": 256},
    ),
    "phi3-longrope": (
        "Phi3",
        {"original_max_position_embeddings": 64, "rope_parameters": _longrope(6) | {"partial_rotary_factor": 0.75}},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-yarn": ("Qwen3", {"head_dim": 32, "rope_parameters": YARN}),
    "qwen3-window": (
        "Qwen3",
        {"head_dim": 32, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen3-moe": ("Qwen3Moe", MOE),
    "qwen3-moe-mixed": ("Qwen3Moe", MOE | {"mlp_only_layers": [0], "norm_topk_prob": False}),
    "qwen3-moe-sparse-step": ("Qwen3Moe", MOE | {"decoder_sparse_step": 2, "attention_bias": True}),
}  # fmt: skip


def build(name: str) -> transformers.PreTrainedModel:
    """The model of that name, float32, eager attention, with weights that make hidden states and logits of order 1."""
    family, values = CONFIGS[name]
    config = getattr(transformers, f"{family}Config")(**SIZES | values)
    torch.manual_seed(sum(name.encode()))
    model = (
        getattr(transformers, f"{family}ForCausalLM")._from_config(config, attn_implementation="eager").float().eval()
    )
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "norm" in key:
                p.uniform_(0.5, 1.5)
            elif key.endswith("bias"):
                p.normal_(0, 0.2)
            elif "embed" in key:
                p.normal_(0, 1.0)
            else:
                p.normal_(0, 1.5 * p.shape[-1] ** -0.5)
    return model


def save(name: str, folder: Path) -> transformers.PreTrainedModel:
    """Build and save the model as safetensors and config.json."""
    model = build(name)
    model.save_pretrained(folder)
    return model
