"""The model of the embedded default, from its prepared folder, against transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.teacher import greedy, load_teacher

pytestmark = pytest.mark.parity
NEW = 160
PROMPTS = {
    "prose": "The history of the steam engine begins",
    "code": "def quicksort(values):\n",
    "chat": "<|im_start|>user\nExplain why the sky is blue.<|im_end|>\n<|im_start|>assistant\n",
}


@pytest.fixture(scope="module")
def theirs(smollm2):
    return load_teacher(smollm2.path)


@pytest.fixture(scope="module", params=PROMPTS)
def answer(request, smollm2, theirs):
    """(prompt, what transformers answers)"""
    ids = smollm2.tokenizer().encode(PROMPTS[request.param])
    return ids, greedy(theirs, ids, NEW)[0]


@pytest.mark.parametrize("chunk", [None, 7])
def test_greedy_tokens(smollm2_engine, answer, chunk):
    ids, expected = answer
    assert len(expected) == NEW
    smollm2_engine.reset(0)
    assert smollm2_engine.generate(0, ids, NEW, chunk) == expected


def test_logprobs(smollm2, theirs, smollm2_engine):
    """Every position of a text, against the log-softmax of torch; seen: 4e-5, within what float32 sums differ."""
    ids = smollm2.tokenizer().encode(PROMPTS["prose"] + " with the search for a pump that could drain a mine.")
    with torch.no_grad():
        logits = theirs(torch.tensor([ids])).logits[0]
    expected = torch.log_softmax(logits.double(), -1).numpy()
    smollm2_engine.reset(0)
    smollm2_engine.params(0, flags=2, lp_n=20)
    for i, token in enumerate(ids):
        smollm2_engine.feed({0: [token]})
        record = smollm2_engine.buffers.out_logprob[0]
        np.testing.assert_allclose(record["values"], np.sort(expected[i])[::-1][:20], atol=1e-3)
        np.testing.assert_allclose(record["values"], expected[i][record["ids"]], atol=1e-3)
    smollm2_engine.params(0)
