"""Sampling on the device against the reference engine's, token by token, on the same step buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.native.sampler import Sampler
from blink.engine.reference.engine import ReferenceEngine
from blink.engine.seam.batch import BATCH, Kind
from blink.engine.seam.buffers import BatchBuffers
from blink.ring.layout import Flag
from tests.gpu.native_step import fill, run, upload

pytestmark = pytest.mark.gpu

Step = dict[int, list[int]]  # what is fed, by lane
F32 = np.ndarray
PLAIN = {"temperature": 1.0, "top_p": 1.0, "repetition": 1.0, "prompt_len": 1}


class World:
    """The device's sampler and the reference's, with the same lanes."""

    def __init__(self, gpu: Any, vocab: int, lanes: int, context: int, tokens: int = 0) -> None:
        self.gpu, self.vocab, self.context = gpu, vocab, context
        dims = {"lanes": lanes, "tokens": max(tokens, lanes), "lane_pages": 1}
        self.host, self.buffers = BatchBuffers(dims), DeviceBuffers(gpu, dims)
        self.sampler = Sampler(gpu, self.buffers, vocab=vocab, max_context=context)
        self.reference = ReferenceEngine.__new__(ReferenceEngine)  # its sampling needs no model
        self.reference.buffers = self.host
        self.reference._fed = np.zeros((lanes, context), np.int32)
        self.length = np.zeros(lanes, np.int64)

    def admit(self, lane: int, **params: Any) -> None:
        """Give a lane parameters, LaneParams' names, and ``bias`` and ``stop``; it starts at position 0."""
        entry = np.zeros(1, self.host.lane_params.dtype)
        bias, stop = dict(params.pop("bias", {})), list(params.pop("stop", []))
        logprobs = params.pop("logprobs", None)
        if logprobs is not None:
            params |= {"lp_n": logprobs, "flags": Flag.LOGPROBS}
        for name, value in {**PLAIN, **params, "n_bias": len(bias), "n_stop": len(stop)}.items():
            entry[name] = value
        self.host.lane_params[lane] = entry[0]
        self.host.lane_stop[lane, : len(stop)] = stop
        self.host.lane_bias_ids[lane, : len(bias)] = [*bias]
        self.host.lane_bias_values[lane, : len(bias)] = [*bias.values()]
        self.length[lane] = 0

    def step(self, fed: Step, logits: F32, skip: tuple[int, ...] = (), size: int = 0) -> dict[int, int]:
        """Feed tokens and sample by ``logits`` [rows][vocab] in both ways, except lanes ``skip``; compare all there is.

        Returns the tokens, by lane.
        """
        h, lanes = self.host, [*fed]
        counts = [len(fed[lane]) for lane in lanes]
        starts, rows = np.concatenate([[0], np.cumsum(counts)]), len(lanes)
        kind = Kind.DECODE if max(counts) == 1 else Kind.PREFILL
        h.control["kind"], h.control["rows"], h.control["tokens"] = kind, rows, starts[-1]
        h.row_lane[:rows], h.row_start[: rows + 1] = lanes, starts
        for row, lane in enumerate(lanes):
            at = slice(starts[row], starts[row + 1])
            h.token_ids[at], h.positions[at] = fed[lane], self.length[lane] + np.arange(counts[row])
            self.length[lane] += counts[row]
            h.row_sample[row] = lane not in skip
        h.row_kv_len[:rows] = self.length[lanes]
        of_token = np.repeat(lanes, counts)
        self.reference._fed[of_token, h.positions[: starts[-1]]] = h.token_ids[: starts[-1]]
        h.out_token[:] = -9
        h.out_logprob[:] = np.zeros((), h.out_logprob.dtype)
        fill(self.buffers, **{a.name: getattr(h, a.name) for a in BATCH.arrays})
        memory = upload(self.gpu, logits.astype(np.float32))
        size = size or (rows if kind is Kind.DECODE else int(starts[-1]))
        run(self.gpu, lambda stream: self.sampler.enqueue(kind, size, memory.address, stream))
        memory.free()
        for row in np.flatnonzero(h.row_sample[:rows]):
            with np.errstate(all="ignore"):
                self.reference._sample(int(row), logits[row].astype(np.float32))
        got, records = self.buffers.read("out_token"), self.buffers.read("out_logprob")
        wrong = np.flatnonzero(got != h.out_token)
        assert len(wrong) == 0, f"{got[wrong]} for {h.out_token[wrong]}: {h.lane_params[h.row_lane[wrong]]}"
        for name in ("n", "ids"):
            assert np.array_equal(records[name], h.out_logprob[name]), name
        for name in ("chosen", "values"):
            # exp and log may differ in their last bit, which is all that is left of the most likely token's.
            np.testing.assert_allclose(records[name], h.out_logprob[name], rtol=2e-7, atol=1e-14)
        return {lane: int(got[row]) for row, lane in enumerate(lanes) if lane not in skip}

    def close(self) -> None:
        self.sampler.close()
        self.buffers.close()


@contextmanager
def world(gpu: Any, vocab: int, lanes: int, context: int = 64, tokens: int = 0) -> Iterator[World]:
    made = World(gpu, vocab, lanes, context, tokens)
    try:
        yield made
    finally:
        made.close()


def some_logits(rng: np.random.Generator, vocab: int) -> F32:
    """Logits as models give them, and as they should not: flat, tied, peaked, huge, with both zeros."""
    kind = rng.integers(8)
    z = rng.normal(0, 3, vocab).astype(np.float32)
    match kind:
        case 0:
            z[:] = rng.choice([0.0, -3.5, 1e9])
        case 1:
            z = np.round(z)
        case 2:
            z[rng.integers(vocab)] += rng.choice([5, 30, 1e6])
        case 3:
            z *= np.float32(1e30)
        case 4:
            z = np.where(rng.random(vocab) < 0.5, np.float32(0.0), np.float32(-0.0))
            z[rng.integers(vocab)] = 1e-3
        case 5:
            z = (z.view(np.uint32) & 0xFFFF0000).view(np.float32)
        case 6:
            z = np.sort(z)
    return z


def some_params(rng: np.random.Generator, vocab: int) -> dict[str, Any]:
    """Parameters that a request may have, each often left alone."""

    def maybe(usual: Any, *others: Any) -> Any:
        return usual if rng.random() < 0.5 else others[rng.integers(len(others))]

    ids, values = rng.permutation(vocab), rng.normal(0, 8, 1024)
    biased = ids[vocab - min(vocab, maybe(0, 1, 7, 1024)) :]
    return {
        "temperature": maybe(1.0, 0.0, 0.0, 1e-30, 0.05, 0.7, 1.5, 40.0, 1e30),
        "top_k": maybe(0, 1, 2, 3, 20, 50, vocab - 1, vocab, vocab + 7),
        "top_p": maybe(1.0, 0.95, 0.9, 0.5, 0.01, 1e-7, 0.0, 0.99999),
        "min_p": maybe(0.0, 0.02, 0.3, 1.0),
        "repetition": maybe(1.0, 1.1, 2.0, 0.7),
        "presence": maybe(0.0, 0.5, -1.0),
        "frequency": maybe(0.0, 0.3, -0.2),
        "seed": int(rng.integers(1 << 63)) * 2 + int(rng.integers(2)),
        "min_tokens": maybe(0, 2, 50),
        "stop": ids[: maybe(0, 1, 5, min(64, vocab - 1))],
        "bias": dict(zip(biased.tolist(), values.tolist(), strict=False)),
        "logprobs": maybe(None, 0, 1, 5, 20),
        "prompt_len": int(rng.integers(1, 12)),
    }


def some_prompt(rng: np.random.Generator, vocab: int, count: int) -> list[int]:
    return rng.integers(0, min(vocab, int(rng.choice([3, 50, vocab]))), count).tolist()


def random_use(gpu: Any, seed: int, vocab: int, lanes: int, steps: int) -> None:
    """Lanes come with a prompt, go on with what was sampled, and make place for others."""
    rng = np.random.default_rng(seed)
    with world(gpu, vocab, lanes, context=40, tokens=lanes * 12) as w:
        fed: Step = {}
        for _ in range(steps):
            for lane in range(lanes):
                if lane not in fed or w.length[lane] > 26 or rng.random() < 0.1:
                    params = some_params(rng, vocab)
                    w.admit(lane, **params)
                    fed[lane] = some_prompt(rng, vocab, params["prompt_len"])
            order = [int(x) for x in rng.permutation(lanes)]
            now = {lane: fed[lane] for lane in order}
            logits = np.stack([some_logits(rng, vocab) for _ in now])
            tokens = w.step(now, logits)
            fed = {lane: [token] for lane, token in tokens.items() if token >= 0}


@pytest.mark.parametrize("seed", range(8))
def test_random_parameters(gpu: Any, seed: int) -> None:
    vocab = (1, 2, 7, 33, 500, 1000, 4099, 20_000)[seed]
    random_use(gpu, seed, vocab, lanes=48, steps=16)


@pytest.mark.parametrize("vocab", [49_152, 50_257, 128_256, 151_936])
def test_vocabularies_of_models(gpu: Any, vocab: int) -> None:
    random_use(gpu, vocab, vocab, lanes=16, steps=5)


@pytest.mark.parametrize("vocab", [393_217, 1_000_003, 1 << 22])
def test_vocabularies_beyond_shared_memory(gpu: Any, vocab: int) -> None:
    random_use(gpu, vocab, vocab, lanes=5, steps=2)


def test_many_draws_of_plain_sampling(gpu: Any) -> None:
    rng, lanes, vocab = np.random.default_rng(9), 256, 3000
    with world(gpu, vocab, lanes, context=40) as w:
        for lane in range(lanes):
            w.admit(lane, temperature=float(rng.choice([0.6, 1.0])), seed=int(rng.integers(1 << 62)))
        fed = {lane: [1] for lane in range(lanes)}
        for _ in range(20):
            tokens = w.step(fed, rng.normal(0, 2, (lanes, vocab)), size=lanes)
            assert len(set(tokens.values())) > 50
            fed = {lane: [token] for lane, token in tokens.items()}


def test_penalties_count_a_long_history_in_chunks_and_again_when_resumed(gpu: Any) -> None:
    """A lane fed in chunks, one that stopped and is fed again from 0, and one in another's place have one history."""
    rng, vocab = np.random.default_rng(4), 40
    params = {"temperature": 0.9, "repetition": 1.2, "presence": 0.4, "frequency": 0.25, "prompt_len": 30, "seed": 5}
    with world(gpu, vocab, 3, context=300, tokens=400) as w:
        for lane in range(3):
            w.admit(lane, **params)
        prompt = rng.integers(0, vocab, 30).tolist()
        logits = rng.normal(0, 1, (200, vocab))
        w.step({0: prompt[:13], 1: rng.integers(0, vocab, 60).tolist()}, logits[:2], skip=(0, 1))
        token = w.step({0: prompt[13:]}, logits[:1])[0]
        answer = []
        for i in range(150):
            answer.append(token)
            token = w.step({0: [token]}, logits[i : i + 1])[0]
        w.admit(1, **params)  # in the place of another
        w.step({1: (prompt + answer)[:100]}, logits[:1], skip=(1,))
        assert w.step({1: (prompt + answer)[100:]}, logits[149:150]) == {1: token}
        w.admit(0, **params)  # preempted, and fed again
        assert w.step({0: prompt + answer}, logits[149:150]) == {0: token}


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0}, {"top_k": 5}, {"repetition": 1.5}])
def test_a_row_that_is_not_finite_fails_alone(gpu: Any, bad: float, params: dict[str, float]) -> None:
    rng, vocab = np.random.default_rng(1), 1000
    with world(gpu, vocab, 5) as w:
        for lane in range(5):
            w.admit(lane, **params, logprobs=2)
        for at in (0, 517, 999):
            logits = rng.normal(0, 1, (5, vocab))
            logits[2, at] = bad
            tokens = w.step({lane: [3] for lane in range(5)}, logits)
            assert [lane for lane, token in tokens.items() if token == -1] == [2]


def test_a_bias_or_ban_that_leaves_nothing_fails(gpu: Any) -> None:
    with world(gpu, 3, 3) as w:
        w.admit(0, temperature=1.0, bias={1: np.inf})
        w.admit(1, temperature=1.0, stop=[0, 1, 2], min_tokens=9)
        w.admit(2, temperature=1.0, bias={0: -np.inf})
        tokens = w.step({0: [0], 1: [0], 2: [0]}, np.zeros((3, 3)))
        assert (tokens[0], tokens[1]) == (-1, -1)
        assert tokens[2] in (1, 2)


def test_rows_past_the_steps_and_rows_that_do_not_sample_are_left_alone(gpu: Any) -> None:
    with world(gpu, 100, 8) as w:
        for lane in range(8):
            w.admit(lane)
        w.step({4: [1], 2: [1]}, np.random.default_rng(0).normal(0, 1, (2, 100)), skip=(4,), size=8)
