from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from blink.errors import BlinkError
from blink.model.gguf_arch import shortest
from blink.model.prepare import prepare
from blink.model.spec import ModelSpec
from tests.model import tiny_gguf

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
Q = gguf.GGMLQuantizationType


def _prepared(tmp_path, *args, **kwargs):
    tiny = tiny_gguf.write(tmp_path / "tiny.gguf", *args, **kwargs)
    model = prepare(str(tiny.path), tmp_path / "model")
    return tiny, model


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.Q8_0])
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_tensors_come_back_as_they_were_before_conversion(tmp_path, arch, kind, tied):
    tiny, model = _prepared(tmp_path, arch, kind=kind, tied=tied)
    stored = load_file(model.path / "model.safetensors")
    assert stored.keys() == tiny.tensors.keys() == model.tensors().keys()
    for name, expected in tiny.tensors.items():
        assert stored[name].dtype == np.float32
        assert np.array_equal(stored[name], expected), name
        assert np.array_equal(model.tensors()[name], expected), name
    assert model.config["architectures"] == [ARCHITECTURES[arch]]
    assert model.config["tie_word_embeddings"] is tied


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_biases_are_reordered_with_their_matrices(tmp_path, arch):
    tiny, model = _prepared(tmp_path, arch, bias=True)
    assert model.config["attention_bias"] is True
    stored = model.tensors()
    for name in (n for n in tiny.tensors if n.endswith("bias")):
        assert np.array_equal(stored[name], tiny.tensors[name]), name


def test_configuration(tmp_path):
    _, model = _prepared(tmp_path, "qwen3moe")
    spec = ModelSpec.from_config(model.config)
    assert (spec.hidden, spec.layers, spec.heads, spec.kv_heads, spec.head_dim, spec.vocab) == (64, 2, 4, 2, 16, 40)
    assert (spec.norm_eps, spec.rope.theta, spec.max_context) == (1e-6, 10000.0, 256)
    assert spec.moe is not None
    assert (spec.moe.experts, spec.moe.top_k, spec.moe.intermediate, spec.moe.norm_topk) == (4, 2, 32, True)
    assert model.eos_ids == [0]
    assert json.loads((model.path / "generation_config.json").read_text()) == {"bos_token_id": 1, "eos_token_id": 0}


def test_phi3_rotates_a_part_with_long_and_short_factors(tmp_path):
    factors = {
        "rope_factors_long.weight": np.linspace(1, 8, 6, dtype=np.float32),
        "rope_factors_short.weight": np.linspace(1, 1.2, 6, dtype=np.float32),
    }
    values = {
        "phi3.rope.dimension_count": 12,
        "phi3.rope.scaling.original_context_length": 64,
        "phi3.attention.sliding_window": 100,
    }
    w_values = {k: v for k, v in values.items() if k == "phi3.rope.scaling.original_context_length"}
    tiny_gguf.write(tmp_path / "tiny.gguf", "phi3", extra=factors, values=w_values)
    # The writer refuses a key twice, so the two that every phi3 file has are changed in place.
    data = (tmp_path / "tiny.gguf").read_bytes()
    for key in ("phi3.rope.dimension_count", "phi3.attention.sliding_window"):
        at = data.index(key.encode()) + len(key) + 4
        data = data[:at] + values[key].to_bytes(4, "little") + data[at + 4 :]
    (tmp_path / "tiny.gguf").write_bytes(data)
    spec = ModelSpec.from_config(prepare(str(tmp_path / "tiny.gguf"), tmp_path / "model").config)
    assert (spec.rope.kind, spec.rope.dim, spec.rope.original_context, spec.windows) == ("longrope", 12, 64, (100, 100))
    assert np.allclose(spec.rope.long_factor, factors["rope_factors_long.weight"], rtol=1e-7)
    assert np.allclose(spec.rope.short_factor, factors["rope_factors_short.weight"], rtol=1e-7)


def llama3_divisors(factor: float, theta: float, dim: int) -> np.ndarray:
    """As llama.cpp's converter computes them, one frequency at a time."""
    out = []
    for freq in 1.0 / theta ** (np.arange(0, dim, 2) / dim):
        wavelength = 2 * np.pi / freq
        if wavelength < 8192 / 4:
            out.append(1.0)
        elif wavelength > 8192 / 1:
            out.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered(tmp_path, factor):
    divisors = llama3_divisors(factor, 10000.0, tiny_gguf.HEAD_DIM)
    _, model = _prepared(tmp_path, extra={"rope_freqs.weight": divisors})
    assert model.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_linear_and_yarn_scaling(tmp_path):
    values = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    _, model = _prepared(tmp_path, values=values)
    assert model.config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    values = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 64,
    }
    _, model = _prepared(tmp_path, values=values)
    assert ModelSpec.from_config(model.config).rope.original_context == 64


@pytest.mark.parametrize(
    ("arch", "kwargs", "says"),
    [
        ("gemma3", {}, "architecture 'gemma3'"),
        ("llama", {"extra": {"blk.0.ffn_sub_norm.weight": np.ones(8, np.float32)}}, "blk.0.ffn_sub_norm.weight"),
        ("llama", {"extra": {"rope_freqs.weight": np.full(8, 3.0, np.float32)}}, "not Llama 3's scaling"),
        ("llama", {"values": {"llama.rope.scaling.type": "dynamic"}}, "'dynamic'"),
        ("llama", {"without": "blk.1.attn_v.weight"}, "has no tensor model.layers.1.self_attn.v_proj.weight"),
        ("llama", {"without": "output_norm.weight"}, "has no tensor model.norm.weight"),
        ("llama", {"without": "token_embd.weight"}, "has no token_embd.weight"),
        (
            "qwen3",
            {"without": "blk.0.attn_output.bias", "bias": True},
            "layers.0.self_attn.o_proj.bias",
        ),
        ("qwen3moe", {"without": "blk.0.ffn_up_exps.weight"}, "has no tensor model.layers.0.mlp.experts.0.up_proj"),
        (
            "llama",
            {"values": {"llama.attention.key_length": 32}},
            "self_attn.q_proj.weight has shape",
        ),
        ("llama", {"values": {"llama.expert_count": 8}}, "mixture of experts of the llama family"),
        ("llama", {"values": {"split.count": 3}}, "one part of a split model"),
        ("llama", {"values": {"llama.attention.value_length": 8}}, "different widths"),
        ("llama", {"tokenizer": tiny_gguf.byte_level_tokenizer(**{"ggml.model": "bert"})}, "'bert'"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, arch, kwargs, says):
    path = tiny_gguf.write(tmp_path / "tiny.gguf", arch, **kwargs).path
    with pytest.raises(BlinkError, match=str(path)) as e:
        prepare(str(path), tmp_path / "model")
    assert says in e.value.cause
    assert not (tmp_path / "model").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tiny.gguf"]


def test_a_quantization_without_a_decoder_is_named(tmp_path):
    path = tiny_gguf.write(tmp_path / "tiny.gguf", kind=Q.F16).path
    data = path.read_bytes()
    at = data.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight") + 4 + 16
    assert data[at : at + 4] == Q.F16.to_bytes(4, "little")
    path.write_bytes(data[:at] + Q.I16.to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(BlinkError, match=r"blk\.0\.ffn_up\.weight has type I16"):
        prepare(str(path), tmp_path / "model")


def test_shortest():
    assert [shortest(x) for x in (9.999999747378752e-06, 100000.0, 0.1, np.float32(1e-6))] == [1e-5, 1e5, 0.1, 1e-6]
