"""Every architecture against transformers, which loads the same files.

Tolerance: |ours - theirs| ≤ 2e-4 + 2e-4 |theirs| for float32 hidden states and logits of order 1 to 10. Both sides
round every sum in an order of their own.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from blink.engine.reference.forward import Tokens
from blink.model.spec import ModelSpec
from tests.engine.checkpoints import CONFIGS, engine_context, prompt, save, spec
from tests.engine.harness import Harness
from tests.engine.teacher import greedy, load_teacher

pytestmark = pytest.mark.parity
TOLERANCE = {"rtol": 2e-4, "atol": 2e-4}
PROMPT = 37
NEW = 72
LENGTH_DEPENDENT = [name for name in CONFIGS if spec(name).rope.kind in ("longrope", "dynamic")]


def load(name, folder):
    save(name, folder)
    model_spec = ModelSpec.from_config(json.loads((folder / "config.json").read_text()))
    return load_teacher(folder), model_spec, folder


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request, tmp_path_factory):
    return request.param, *load(request.param, tmp_path_factory.mktemp(request.param))


def harness(model_spec, folder, context):
    return Harness(
        model_spec, load_file(folder / "model.safetensors"), context=context, batch_tokens=context, threads=1
    )


def run(h, ids):
    """Hidden states before every layer and after the last, and the logits of every token."""
    h.feed({0: ids}, sample=False)
    b, n = h.buffers, len(ids)
    seen = []
    tokens = Tokens(b.token_ids[:n], b.positions[:n], b.kv_index[:n], np.zeros(n, np.int32), b.block_table[[0]])
    last = h.engine.model.hidden(tokens, lambda _, x: seen.append(x.copy()))
    return seen, h.engine.model.logits(last)


def teacher(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), output_hidden_states=True)


def test_hidden_states_and_logits(pair):
    name, model, model_spec, folder = pair
    ids = prompt(name, PROMPT)
    theirs = teacher(model, ids)
    seen, logits = run(harness(model_spec, folder, engine_context(name)), ids)
    for i in range(model_spec.layers):  # transformers' last entry is after the final norm, which the logits stand for
        np.testing.assert_allclose(seen[i], theirs.hidden_states[i][0].numpy(), **TOLERANCE, err_msg=f"layer {i}")
    np.testing.assert_allclose(logits, theirs.logits[0].numpy(), **TOLERANCE)


@pytest.mark.parametrize("chunk", [None, 1, 5, 16])
def test_greedy_tokens(pair, chunk):
    name, model, model_spec, folder = pair
    context = engine_context(name)
    ids = prompt(name, PROMPT)[: context // 4]
    count = min(NEW, context - len(ids))
    theirs, _ = greedy(model, ids, count)
    assert len(theirs) == count
    assert harness(model_spec, folder, context).generate(0, ids, count, chunk) == theirs


@pytest.mark.parametrize("name", LENGTH_DEPENDENT)
def test_context_beyond_the_original_one(name, tmp_path):
    """Where frequencies depend on the length, the engine's are those that transformers uses at its full context."""
    model, model_spec, folder = load(name, tmp_path)
    context = 192 if model_spec.rope.kind == "longrope" else 320
    ids = prompt(name, context, seed=8)
    _, logits = run(harness(model_spec, folder, context), ids)
    np.testing.assert_allclose(logits, teacher(model, ids).logits[0].numpy(), **TOLERANCE)
