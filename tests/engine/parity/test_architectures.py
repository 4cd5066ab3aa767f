"""Every architecture against transformers, from the same files.

Tolerance: |ours - theirs| ≤ 2e-4 + 2e-4 |theirs| for float32 hidden states and logits of order 1. Both sides round
every sum differently; what is seen is ten times smaller.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the parity suite compares with torch and transformers: `make parity`")
pytest.importorskip("transformers", reason="the parity suite compares with torch and transformers: `make parity`")

from safetensors.numpy import load_file  # noqa: E402

from blink.engine.forward import Tokens  # noqa: E402
from blink.model.spec import ModelSpec  # noqa: E402
from tests.engine.harness import Harness  # noqa: E402
from tests.engine.parity.checkpoints import CONFIGS, save  # noqa: E402

pytestmark = pytest.mark.parity
TOLERANCE = {"rtol": 2e-4, "atol": 2e-4}
PROMPT = [int(t) for t in np.random.default_rng(7).integers(3, 320, 37)]
NEW = 72


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request, tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp(request.param)
    model = save(request.param, folder)
    spec = ModelSpec.from_config(json.loads((folder / "config.json").read_text()))
    return model, spec, load_file(folder / "model.safetensors")


def long_context(spec: ModelSpec) -> int:
    """The engine's context: short enough for short longrope factors, where transformers uses those too."""
    return 64 if spec.rope.kind == "longrope" else 256


def teacher(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), output_hidden_states=True)


def test_hidden_states_and_logits(pair):
    model, spec, tensors = pair
    harness = Harness(spec, tensors, context=long_context(spec))
    theirs = teacher(model, PROMPT)
    harness.feed({0: PROMPT}, sample=False)
    b, n = harness.buffers, len(PROMPT)
    seen: dict[int, np.ndarray] = {}
    tokens = Tokens(b.token_ids[:n], b.positions[:n], b.kv_index[:n], np.zeros(n, np.int32), b.block_table[[0]])
    last = harness.engine.model.hidden(tokens, lambda i, x: seen.__setitem__(i, x.copy()))
    for i in range(spec.layers):  # transformers' last entry is after the final norm, so the logits stand for it
        np.testing.assert_allclose(seen[i], theirs.hidden_states[i][0].numpy(), **TOLERANCE, err_msg=f"layer {i}")
    np.testing.assert_allclose(harness.engine.model.logits(last), theirs.logits[0].numpy(), **TOLERANCE)


@pytest.mark.parametrize("chunk", [None, 1, 5, 16])
def test_greedy_tokens(pair, chunk):
    model, spec, tensors = pair
    count = min(NEW, long_context(spec) - len(PROMPT))
    with torch.no_grad():
        theirs = model.generate(
            torch.tensor([PROMPT]), do_sample=False, max_new_tokens=count, min_new_tokens=count, eos_token_id=None
        )[0, len(PROMPT) :].tolist()
    assert len(theirs) == count
    assert Harness(spec, tensors, context=long_context(spec)).generate(0, PROMPT, count, chunk) == theirs


def test_context_beyond_the_original_one(pair):
    """Where frequencies depend on length: the engine's are those that transformers uses at its full context."""
    model, spec, tensors = pair
    if spec.rope.kind not in ("longrope", "dynamic"):
        pytest.skip("frequencies do not depend on the length")
    context = 192 if spec.rope.kind == "longrope" else 320
    ids = [int(t) for t in np.random.default_rng(8).integers(3, 320, context)]
    harness = Harness(spec, tensors, context=context, batch_tokens=context)
    harness.feed({0: ids})
    logits = teacher(model, ids).logits[0, -1].numpy()
    n, b = len(ids), harness.buffers
    tokens = Tokens(b.token_ids[:n], b.positions[:n], b.kv_index[:n], np.zeros(n, np.int32), b.block_table[[0]])
    ours = harness.engine.model.logits(harness.engine.model.hidden(tokens)[-1:])[0]
    np.testing.assert_allclose(ours, logits, **TOLERANCE)
