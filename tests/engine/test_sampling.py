from __future__ import annotations

import math

import numpy as np
import pytest

from blink.engine.reference.philox import random_u64
from blink.engine.reference.sampling import SampleParams, adjust, sample, weights

VOCAB = 50
ONE = 1 << 40


@pytest.fixture
def logits():
    return np.random.default_rng(3).normal(0, 2, VOCAB).astype(np.float32)


def ids(*tokens):
    return np.array(tokens, np.int32)


def kept(logits, **params):
    return np.flatnonzero(weights(np.array(logits, np.float32), SampleParams(**params))).tolist()


def test_the_lowest_draw_is_not_a_token_without_weight(monkeypatch):
    monkeypatch.setattr("blink.engine.reference.sampling.random_u64", lambda seed, position: 0)
    z = np.array([0, 5, 5], np.float32)
    assert sample(z, SampleParams(temperature=1, banned=(0,)), 0)[0] == 1


def test_greedy_takes_the_lowest_of_equal_ids():
    z = np.zeros(9, np.float32)
    z[[4, 7]] = 3
    assert sample(z, SampleParams(temperature=0, seed=5), 11)[0] == 4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logit_that_is_not_finite_gives_no_token(logits, bad, temperature):
    logits[17] = bad
    assert sample(logits, SampleParams(temperature=temperature, logprobs=3), 0) == (-1, None)


def test_no_token_where_all_are_banned(logits):
    assert sample(logits, SampleParams(banned=range(VOCAB)), 0) == (-1, None)


def test_weights_are_the_exponentials_in_fixed_point():
    assert weights(np.array([0, -1, -60], np.float32), SampleParams()).tolist() == [ONE, round(ONE * math.exp(-1)), 0]
    assert weights(np.array([0, -1], np.float32), SampleParams(temperature=0.5))[1] == round(ONE * math.exp(-2))


def test_a_tiny_temperature_is_greedy(logits):
    assert sample(logits, SampleParams(temperature=1e-30, seed=1), 0)[0] == int(np.argmax(logits))


def test_top_k_keeps_ties_at_the_edge():
    assert kept([3, 2, 2, 1], top_k=2) == [0, 1, 2]
    assert kept([3, 2, 2, 1], top_k=0) == [0, 1, 2, 3]
    assert kept([3, 2, 2, 1], top_k=9) == [0, 1, 2, 3]


def test_top_p_keeps_what_has_less_than_p_above_it():
    z = np.log([0.5, 0.3, 0.15, 0.05])
    assert kept(z, top_p=0.79) == [0, 1]
    assert kept(z, top_p=0.81) == [0, 1, 2]
    assert kept(z, top_p=1e-6) == [0]
    assert kept([1, 1, 1, 0], top_p=0.1) == [0, 1, 2], "equal tokens stay or go together"


def test_top_p_counts_what_top_k_left():
    assert kept(np.log([0.4, 0.3, 0.2, 0.1]), top_k=2, top_p=0.55) == [0], "0.4 of 0.7 is more than 0.55"


def test_min_p_is_a_share_of_the_most_likely():
    assert kept(np.log([0.5, 0.26, 0.24]), min_p=0.5) == [0, 1]


def test_bias_comes_before_penalties_and_bans_after_all():
    z = np.array([1.0, -1.0, 0.5], np.float32)
    p = SampleParams(logit_bias={1: 3.0}, repetition=2.0, presence=0.25, frequency=0.5, banned=[2])
    got = adjust(z, p, prompt=ids(0), output=ids(1, 1))
    assert got.tolist() == [0.5, (-1 + 3) / 2 - 2 * 0.5 - 0.25, -math.inf]
    assert z.tolist() == [1.0, -1.0, 0.5], "the logits themselves stay as they are"


def test_presence_and_frequency_ignore_the_prompt(logits):
    p = SampleParams(presence=1.0, frequency=1.0)
    assert np.array_equal(adjust(logits, p, prompt=ids(1, 2), output=ids()), logits)


def test_the_draw_is_the_inverse_of_the_cumulated_weights(logits):
    p = SampleParams(seed=0xDEADBEEF12345678, temperature=0.8, top_p=0.9)
    w = [int(x) for x in weights(logits, p)]
    for position in range(300):
        target, token = random_u64(p.seed, position) * sum(w) >> 64, 0
        while target >= w[token]:
            target, token = target - w[token], token + 1
        assert sample(logits, p, position)[0] == token


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.7}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 20, "top_p": 0.9}]
)
def test_distribution(logits, params):
    """Pearson's chi-square over 20 000 positions of one seed; the bound is five deviations above its mean."""
    p = SampleParams(seed=99, **params)
    w = weights(logits, p).astype(np.float64)
    n = 20_000
    expected = n * w / w.sum()
    seen = np.bincount([sample(logits, p, i)[0] for i in range(n)], minlength=VOCAB)
    assert (seen[expected == 0] == 0).all()
    common = expected >= 5
    observed, wanted = seen[common], expected[common]
    if not common.all():
        observed, wanted = np.append(observed, seen[~common].sum()), np.append(wanted, expected[~common].sum() or 1e-9)
    chi = ((observed - wanted) ** 2 / wanted).sum()
    freedom = len(wanted) - 1
    assert chi < freedom + 5 * math.sqrt(2 * freedom)


def test_seeds_and_positions_are_independent_streams(logits):
    def draws(seed, positions):
        return [sample(logits, SampleParams(seed=seed), i)[0] for i in positions]

    assert draws(1, range(50)) == draws(1, range(50))
    assert draws(1, range(50)) != draws(2, range(50))
    assert draws(1, range(50)) != draws(1 << 32, range(50)), "the upper half of the seed counts"
    assert draws(1, range(50)) != draws(1, range(1, 51))


def test_logprobs_are_of_the_raw_logits(logits):
    p = SampleParams(temperature=0.3, top_k=2, repetition=1.5, logit_bias={4: 50.0}, seed=3, logprobs=5)
    token, record = sample(logits, p, 8, prompt=ids(1), output=ids(2))
    reference = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    assert token == 4
    assert record is not None
    assert record.chosen == pytest.approx(reference[4], abs=1e-6)
    assert record.ids.tolist() == np.argsort(-reference)[:5].tolist()
    np.testing.assert_allclose(record.values, np.sort(reference)[::-1][:5], atol=1e-6)


def test_equal_logprobs_go_by_lower_id():
    record = sample(np.array([1, 2, 0, 2, 1, 1], np.float32), SampleParams(temperature=0, logprobs=4), 0)[1]
    assert record is not None
    assert record.ids.tolist() == [1, 3, 0, 4]


def test_no_alternatives_still_gives_the_chosen_one(logits):
    record = sample(logits, SampleParams(temperature=0, logprobs=0), 0)[1]
    assert record is not None
    assert len(record.ids) == 0
    assert record.chosen < 0
