"""Which tokens stay, and with what probability, against transformers' logits processors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from blink.engine.reference.sampling import SampleParams, adjust, weights

pytestmark = pytest.mark.parity
VOCAB = 1000


def theirs(logits, history, **p):
    processors = []
    if "repetition" in p:
        processors.append(hf.RepetitionPenaltyLogitsProcessor(p["repetition"]))
    if "temperature" in p:
        processors.append(hf.TemperatureLogitsWarper(p["temperature"]))
    if "top_k" in p:
        processors.append(hf.TopKLogitsWarper(p["top_k"]))
    if "top_p" in p:
        processors.append(hf.TopPLogitsWarper(p["top_p"]))
    if "min_p" in p:
        processors.append(hf.MinPLogitsWarper(p["min_p"]))
    scores = torch.from_numpy(logits)[None]
    for processor in processors:
        scores = processor(torch.tensor([history]), scores)
    return torch.softmax(scores.double(), -1)[0].numpy()


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.7},
        {"top_k": 40},
        {"top_p": 0.92},
        {"min_p": 0.03},
        {"repetition": 1.3},
        {"temperature": 1.4, "top_k": 100, "top_p": 0.8, "min_p": 0.02, "repetition": 1.15},
        {"temperature": 0.4, "top_k": 5, "top_p": 0.5, "repetition": 0.8},
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_probabilities(params, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, VOCAB).astype(np.float32)
    history = rng.integers(0, VOCAB, 60)
    expected = theirs(logits, history.tolist(), **params)
    p = SampleParams(**params)
    adjusted = adjust(logits, p, history[:30].astype(np.int32), history[30:].astype(np.int32))
    w = weights(adjusted, p).astype(np.float64)
    ours = w / w.sum()
    assert (expected[ours == 0] < 1e-10).all(), "only weights that round to zero may be missing"
    assert (ours[expected == 0] == 0).all()
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=1e-11)
