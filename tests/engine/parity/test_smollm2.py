"""The model of the embedded default, from its prepared folder, against transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

pytestmark = [pytest.mark.parity, pytest.mark.slow]
NEW = 160
PROMPTS = {
    "prose": "The history of the steam engine begins",
    "code": "def quicksort(values):\n",
    "chat": "<|im_start|>user\nExplain why the sky is blue.<|im_end|>\n<|im_start|>assistant\n",
}


@pytest.fixture(scope="module")
def theirs(smollm2):
    return transformers.AutoModelForCausalLM.from_pretrained(smollm2.path, dtype=torch.float32).eval()


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens(smollm2, theirs, smollm2_engine, prompt, chunk):
    ids = smollm2.tokenizer().encode(PROMPTS[prompt])
    with torch.no_grad():
        expected = theirs.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW, eos_token_id=None
        )[0, len(ids) :].tolist()
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
