"""A random checkpoint small enough for every test, made with NumPy and the tokenizers library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from blink.model.prepare import prepare

HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE, CONTEXT = 64, 2, 4, 2, 128, 2048
CORPUS = (
    "The capital of France is Paris, and the capital of Spain is Madrid.",
    "One slot's life: submit, prefill, decode, complete, release.",
    "A scheduler and a frontend meet only in a ring buffer.",
)


def write_checkpoint(folder: Path, *, seed: int = 0, **config: object) -> Path:
    """Write a Llama checkpoint with random weights to ``folder``; ``config`` overrides fields of config.json."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    vocab = tokenizer.get_vocab_size()
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<eos>", "chat_template": "{% for m in messages %}{{ m.content }}\n{% endfor %}"})
    )
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "vocab_size": vocab,
                "hidden_size": HIDDEN,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS,
                "num_key_value_heads": KV_HEADS,
                "intermediate_size": INTERMEDIATE,
                "max_position_embeddings": CONTEXT,
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0,
                "hidden_act": "silu",
                "tie_word_embeddings": True,
                "eos_token_id": 0,
                **config,
            }
        )
    )
    save_file(_weights(vocab, seed), folder / "model.safetensors", {"format": "pt"})
    return folder


def _weights(vocab: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    kv = HIDDEN // HEADS * KV_HEADS

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, 0.1, (rows, columns)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(vocab, HIDDEN), "model.norm.weight": np.ones(HIDDEN, np.float32)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name, rows in (("q", HIDDEN), ("k", kv), ("v", kv), ("o", HIDDEN)):
            tensors[f"{layer}self_attn.{name}_proj.weight"] = matrix(rows, HIDDEN)
        for name, shape in (
            ("gate", (INTERMEDIATE, HIDDEN)),
            ("up", (INTERMEDIATE, HIDDEN)),
            ("down", (HIDDEN, INTERMEDIATE)),
        ):
            tensors[f"{layer}mlp.{name}_proj.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}{name}.weight"] = np.ones(HIDDEN, np.float32)
    return tensors


def prepare_tiny(folder: Path, *, seed: int = 0) -> Path:
    """A prepared folder with the random checkpoint, beside its source."""
    write_checkpoint(folder / "source", seed=seed)
    prepare(str(folder / "source"), folder / "model")
    return folder / "model"
