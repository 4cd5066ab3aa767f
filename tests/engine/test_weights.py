from __future__ import annotations

import numpy as np
import pytest

from blink.engine.reference.cpu import Cpu
from blink.engine.reference.weights import WeightLoader
from blink.errors import BlinkError
from tests.engine.checkpoints import prompt, spec, tensors
from tests.engine.harness import Harness


@pytest.fixture(scope="module")
def cpu():
    c = Cpu(1)
    yield c
    c.close()


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_is_widened_exactly(kind):
    """Weights that half precision can hold give the bits that float32 gives; bfloat16 comes as its bits in uint16."""

    def halve(tensor):
        if kind == "float16":
            return tensor.astype(np.float16)
        return (tensor.view(np.uint32) >> 16).astype(np.uint16)

    def widen(half):
        return half.astype(np.float32) if kind == "float16" else (half.astype(np.uint32) << 16).view(np.float32)

    half = {name: halve(tensor) for name, tensor in tensors("llama").items()}
    full = {name: widen(tensor) for name, tensor in half.items()}
    ids = prompt("llama", 9)
    expected = Harness(spec("llama"), full, threads=1).generate(0, ids, 20)
    assert Harness(spec("llama"), half, threads=1).generate(0, ids, 20) == expected


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.uint8])
def test_other_types_are_refused(cpu, dtype):
    weights = tensors("llama")
    weights["model.norm.weight"] = weights["model.norm.weight"].astype(dtype)
    with pytest.raises(BlinkError, match=r"tensor model.norm.weight has type"):
        WeightLoader(spec("llama"), weights, cpu).load()


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.self_attn.k_proj.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named(cpu, name):
    weights = tensors("llama")
    del weights[name]
    with pytest.raises(BlinkError, match=f"tensor {name} is missing"):
        WeightLoader(spec("llama"), weights, cpu).load()


def test_a_wrong_shape_is_named(cpu):
    weights = tensors("llama")
    weights["model.layers.2.mlp.down_proj.weight"] = weights["model.layers.2.mlp.down_proj.weight"].T
    with pytest.raises(BlinkError, match=r"model.layers.2.mlp.down_proj.weight has shape \[96, 64\].*\[64, 96\]"):
        WeightLoader(spec("llama"), weights, cpu).load()


def test_tied_embeddings_share_one_matrix(cpu):
    weights = WeightLoader(spec("llama-mha-tied"), tensors("llama-mha-tied"), cpu).load()
    assert weights.head is weights.embedding


def test_experts_in_stacks_are_those_in_pieces():
    """Both ways to save experts give the same bits."""
    name = "qwen3-moe"
    single, stacked = tensors(name), tensors(name)
    experts = range(spec(name).moe.experts)
    for i in range(spec(name).layers):
        at = f"model.layers.{i}.mlp.experts."
        pieces = {k: [stacked.pop(f"{at}{e}.{k}_proj.weight") for e in experts] for k in ("gate", "up", "down")}
        stacked[at + "gate_up_proj"] = np.concatenate([np.stack(pieces["gate"]), np.stack(pieces["up"])], axis=1)
        stacked[at + "down_proj"] = np.stack(pieces["down"])
    ids = prompt(name, 9)
    a = Harness(spec(name), single, threads=1).generate(0, ids, 20)
    assert Harness(spec(name), stacked, threads=1).generate(0, ids, 20) == a


def test_tensors_are_taken_one_at_a_time(cpu):
    """The loader keeps no tensor: what a lazily loading mapping hands out can go when the next one comes."""
    weights = tensors("qwen3-moe")

    class Lazy(dict):
        def __getitem__(self, name):
            return weights[name].copy()

    import gc
    import weakref

    refs = []

    class Watched(Lazy):
        def __getitem__(self, name):
            tensor = super().__getitem__(name)
            refs.append(weakref.ref(tensor))
            gc.collect(0)
            assert sum(r() is not None for r in refs) <= 2
            return tensor

    loaded = WeightLoader(spec("qwen3-moe"), Watched(), cpu).load()
    assert loaded
    assert len(refs) == len(weights)
