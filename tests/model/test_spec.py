from __future__ import annotations

import copy
import math

import pytest

from blink.errors import BlinkError
from blink.model.spec import ARCHITECTURES, ModelSpec
from tests.engine.checkpoints import CONFIGS, tensors

LLAMA_31_8B = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "tie_word_embeddings": False, "vocab_size": 128256,
}  # fmt: skip
PHI_4 = {
    "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "hidden_act": "silu", "hidden_size": 5120,
    "intermediate_size": 17920, "max_position_embeddings": 16384, "num_attention_heads": 40, "num_hidden_layers": 40,
    "num_key_value_heads": 10, "original_max_position_embeddings": 16384, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 250000, "sliding_window": None, "tie_word_embeddings": False,
    "vocab_size": 100352,
}  # fmt: skip
QWEN3_32B = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 5120, "intermediate_size": 25600, "max_position_embeddings": 40960, "max_window_layers": 64,
    "num_attention_heads": 64, "num_hidden_layers": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
    "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA_31_8B, 8_030_261_248),
        (PHI_4, 14_659_507_200),
        (QWEN3_32B, 32_762_123_264),
        (QWEN3_30B_A3B, 30_532_122_624),
    ],
    ids=["llama-3.1-8b", "phi-4", "qwen3-32b", "qwen3-30b-a3b"],
)
def test_parameters_of_published_models(config, parameters):
    """The number of parameters that each model's publisher states."""
    assert ModelSpec.from_config(config).parameters() == parameters


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_tensors(name):
    assert ModelSpec.from_config(CONFIGS[name]).parameters() == sum(t.size for t in tensors(name).values())


def test_both_spellings_of_rope_mean_the_same():
    assert ModelSpec.from_config(CONFIGS["llama3"]) == ModelSpec.from_config(CONFIGS["llama3-new-spelling"])


def test_yarn_as_qwen_documents_it():
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    rope = ModelSpec.from_config(QWEN3_32B | {"rope_scaling": scaling}).rope
    assert (rope.kind, rope.factor, rope.original_context) == ("yarn", 4.0, 32768)
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


def test_longrope_scales_by_the_ratio_of_contexts():
    config = CONFIGS["phi3-longrope"]
    rope = ModelSpec.from_config(config).rope
    assert rope.dim == 12
    assert rope.attention_factor == pytest.approx(math.sqrt(1 + math.log(256 / 64) / math.log(64)))


def test_windows():
    assert ModelSpec.from_config(CONFIGS["qwen3-window"]).windows == (0, 16, 16)
    assert ModelSpec.from_config(CONFIGS["qwen3-unused-window"]).windows == (0, 0, 0)
    assert ModelSpec.from_config(CONFIGS["phi3-window"]).windows == (24, 24, 24)
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    assert ModelSpec.from_config(CONFIGS["qwen3-window"] | {"layer_types": types}).windows == (16, 0, 16)


def test_routed_layers():
    moe = {name: ModelSpec.from_config(CONFIGS[name]).moe for name in CONFIGS if "moe" in name}
    assert moe["qwen3-moe"].layers == (True, True, True)
    assert moe["qwen3-moe-mixed"].layers == (False, True, True)
    assert moe["qwen3-moe-sparse-step"].layers == (False, True, False)


@pytest.mark.parametrize(
    ("name", "field", "value", "named"),
    [
        ("llama", "architectures", ["GPT2LMHeadModel"], "architectures"),
        ("llama", "architectures", None, "architectures"),
        ("llama", "hidden_size", None, "hidden_size"),
        ("llama", "hidden_size", "64", "hidden_size"),
        ("llama", "num_hidden_layers", 0, "num_hidden_layers"),
        ("llama", "num_key_value_heads", 3, "num_key_value_heads"),
        ("llama", "vocab_size", True, "vocab_size"),
        ("llama", "rms_norm_eps", -1, "rms_norm_eps"),
        ("llama", "hidden_act", "gelu", "hidden_act"),
        ("llama", "mlp_bias", "yes", "mlp_bias"),
        ("llama", "quantization_config", {"quant_method": "awq"}, "quantization_config"),
        ("llama", "rope_scaling", {"rope_type": "ntk"}, "rope_scaling.rope_type"),
        ("llama", "rope_scaling", {"rope_type": "linear"}, "rope_scaling.factor"),
        ("llama", "rope_scaling", [1], "rope_scaling"),
        ("llama3", "rope_scaling", {"rope_type": "llama3", "factor": 8.0}, "rope_scaling.low_freq_factor"),
        ("phi3-partial", "partial_rotary_factor", 0.2, "partial_rotary_factor"),
        ("phi3-longrope", "rope_scaling", {"type": "longrope", "short_factor": [1.0]}, "rope_scaling.short_factor"),
        ("phi3", "sliding_window", -1, "sliding_window"),
        ("qwen3-window", "layer_types", ["chunked_attention"] * 3, "layer_types"),
        ("qwen3-moe", "num_experts_per_tok", 9, "num_experts_per_tok"),
        ("qwen3-moe", "num_experts", None, "num_experts"),
        ("qwen3-moe", "mlp_only_layers", [7], "mlp_only_layers"),
    ],
)
def test_what_is_wrong_is_named(name, field, value, named):
    config = copy.deepcopy(CONFIGS[name])
    config[field] = value
    with pytest.raises(BlinkError) as e:
        ModelSpec.from_config(config)
    assert e.value.cause.startswith(f"config.json: {named}")


def test_unsupported_architectures_are_told_the_supported_ones():
    with pytest.raises(BlinkError) as e:
        ModelSpec.from_config({"architectures": ["MambaForCausalLM"]})
    assert all(name in e.value.cause for name in ARCHITECTURES)
