"""The engine over hand-made steps: what it fills, what it refuses, and what a bad row may not touch."""

from __future__ import annotations

import numpy as np
import pytest

from blink.engine.reference.sampling import SampleParams, sample
from blink.errors import BlinkError
from tests.engine.checkpoints import prompt, spec, tensors
from tests.engine.harness import Harness

NAME = "llama"


@pytest.fixture
def harness():
    h = Harness(spec(NAME), tensors(NAME), context=64, threads=1)
    yield h
    h.engine.close()


def step(h: Harness) -> int:
    """Run the step that stands in the buffers; returns its error word."""
    control = h.buffers.control[0]
    control["step"] += 1
    h.engine.run()
    assert control["done"] == control["step"]
    return int(control["error"])


def test_rows_without_sampling_leave_no_token(harness):
    assert harness.feed({0: prompt(NAME, 5)}, sample=False) == [-1]


@pytest.mark.parametrize(
    ("buffer", "index", "value"),
    [
        ("token_ids", 1, 320),
        ("token_ids", 1, -1),
        ("positions", 2, 64),
        ("positions", 2, -5),
        ("positions", 2, 0),
        ("kv_index", 0, 4 * 64),
        ("kv_index", 0, -1),
        ("row_lane", 0, 4),
        ("row_start", 0, 1),
        ("row_start", 1, 99),
        ("row_start", 1, 0),
        ("row_kv_len", 0, 2),
        ("row_kv_len", 0, 1 << 30),
        ("block_table", (0, 0), 32),
        ("block_table", (0, 0), -1),
    ],
)
def test_a_corrupted_step_is_an_error_and_the_next_one_runs(harness, buffer, index, value):
    ids = prompt(NAME, 3)
    expected = harness.feed({0: ids})
    kept = getattr(harness.buffers, buffer)[index].copy()
    getattr(harness.buffers, buffer)[index] = value
    assert step(harness) == 1
    assert harness.buffers.out_token[0] == -1
    getattr(harness.buffers, buffer)[index] = kept
    assert step(harness) == 0
    assert harness.buffers.out_token[0] == expected[0]


@pytest.mark.parametrize(("rows", "tokens"), [(0, 0), (5, 5), (1, 257), (1, 0), (2, 1), (1 << 31, 1)])
def test_impossible_counts(harness, rows, tokens):
    control = harness.buffers.control[0]
    control["rows"], control["tokens"] = rows, tokens
    assert step(harness) == 1


def test_a_row_that_is_not_finite_fails_alone():
    """Token 9's embedding is broken: its row has no token, its batch-mates have theirs."""
    weights = tensors(NAME)
    ids = [t for t in prompt(NAME, 12) if t != 9]
    expected = Harness(spec(NAME), weights, threads=1).feed({0: ids})
    weights["model.embed_tokens.weight"][9] = np.nan
    h = Harness(spec(NAME), weights, threads=1)
    h.params(0, flags=2, lp_n=3)
    assert h.feed({0: [5, 9, 6], 2: ids, 1: [9]}) == [-1, *expected, -1]
    h.reset(0)
    assert h.feed({0: ids}) == expected, "pages that held NaN serve the next request"


def test_logprob_records(harness):
    harness.params(1, flags=2, lp_n=4)
    tokens = harness.feed({0: prompt(NAME, 4), 1: prompt(NAME, 6)})
    record = harness.buffers.out_logprob[1]
    assert record["n"] == 4
    assert record["ids"][0] == tokens[1]
    assert record["chosen"] == record["values"][0]
    assert harness.buffers.out_logprob[0]["n"] == 0, "only lanes that ask have one"


def test_min_tokens_bans_end_and_stop_ids(harness):
    ids = prompt(NAME, 4)
    first, second = harness.generate(0, ids, 2)
    assert first != second
    harness.reset(0)
    harness.params(0, min_tokens=1, n_stop=1)
    harness.buffers.lane_stop[0, 0] = first
    assert harness.prefill(0, ids) != first
    harness.reset(0)
    harness.params(0, min_tokens=0, n_stop=1)
    assert harness.prefill(0, ids) == first


def test_logit_bias(harness):
    harness.params(0, n_bias=2)
    harness.buffers.lane_bias_ids[0, :2] = [11, 12]
    harness.buffers.lane_bias_values[0, :2] = [500.0, 501.0]
    assert harness.feed({0: prompt(NAME, 4)}) == [12]


def test_penalties_count_the_answer_of_this_request_only(harness):
    """Frequency 100 forbids repetition within an answer; a new request in the lane starts from nothing."""
    ids = prompt(NAME, 4)
    harness.params(0, frequency=100.0)
    answer = harness.generate(0, ids, 30)
    assert len(set(answer)) == 30
    harness.reset(0)
    harness.params(0, frequency=100.0)
    assert harness.generate(0, ids, 30) == answer


def test_repetition_counts_the_prompt(harness):
    ids = prompt(NAME, 20)
    harness.params(0, repetition=1e6)
    assert not set(harness.generate(0, ids, 20)) & set(ids)


def test_done_is_the_step_even_past_zero(harness):
    harness.buffers.control[0]["step"] = (1 << 32) - 1
    with np.errstate(over="ignore"):
        harness.feed({0: [5]})
    assert harness.buffers.control[0]["done"] == 0


def test_closing_twice_is_harmless(harness):
    harness.engine.close()
    harness.engine.close()


def test_every_parameter_reaches_the_sampler(harness):
    """A seeded answer is what the pure function says, from the raw logits, at each token's own position."""
    ids = prompt(NAME, 11)
    values = {"temperature": 1.7, "top_k": 90, "top_p": 0.93, "min_p": 1e-3}
    penalties = {"repetition": 1.2, "presence": 0.4, "frequency": 0.3}
    harness.params(2, seed=(7 << 40) + 5, n_bias=1, **values, **penalties)
    harness.buffers.lane_bias_ids[2, 0], harness.buffers.lane_bias_values[2, 0] = 50, 2.5
    seen = []
    plain = harness.engine.model.logits
    harness.engine.model.logits = lambda x: seen.append(plain(x)) or seen[-1]
    answer = harness.generate(2, ids, 40, chunk=4)
    params = SampleParams(
        **{k: float(np.float32(v)) if isinstance(v, float) else v for k, v in (values | penalties).items()},
        seed=(7 << 40) + 5,
        logit_bias={50: 2.5},
    )
    for i, logits in enumerate(seen):
        said, at = np.array(answer[:i], np.int32), len(ids) + i
        assert answer[i] == sample(logits[0], params, at, prompt=np.array(ids, np.int32), output=said)[0]
    assert len(seen) == 40
    assert len(set(answer)) > 20


@pytest.mark.parametrize("ids", [(320,), (1 << 31,), (5, 4_000_000_000)])
def test_a_row_with_impossible_parameters_fails_alone(harness, ids):
    expected = harness.feed({0: prompt(NAME, 5)})
    harness.reset(0)
    harness.params(1, n_bias=len(ids))
    harness.buffers.lane_bias_ids[1, : len(ids)] = ids
    assert harness.feed({1: prompt(NAME, 5), 0: prompt(NAME, 5)}) == [-1, *expected]


def test_a_context_beyond_the_block_table_is_refused():
    with pytest.raises(BlinkError, match="max_context"):
        Harness(spec(NAME), tensors(NAME), context=64, max_context=65)
