"""What a request is answered does not depend, in any bit, on what else runs, on chunks, pages, lanes or threads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.checkpoints import prompt, spec, tensors
from tests.engine.harness import Harness

NAMES = ["llama-odd-sizes", "phi3-window", "phi3-longrope", "qwen3-yarn", "qwen3-moe"]
SAMPLED = {"temperature": 1.2, "top_p": 0.95, "top_k": 60, "frequency": 0.3, "repetition": 1.1}


class Recorder(Harness):
    """Keeps the logits of every sampled row, by lane."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.logits: dict[int, list[np.ndarray]] = {}
        plain = self.engine.model.logits

        def recording(x):
            out = plain(x)
            rows = np.flatnonzero(self.buffers.row_sample[: self.buffers.control[0]["rows"]])
            for row, values in zip(rows, out, strict=True):
                self.logits.setdefault(int(self.buffers.row_lane[row]), []).append(values.copy())
            return out

        self.engine.model.logits = recording


def recorder(name, **kwargs) -> Recorder:
    h = Recorder(spec(name), tensors(name), **({"lanes": 9, "context": 64, "threads": 2} | kwargs))
    for lane in range(9):
        h.params(lane, seed=1000, **SAMPLED)
    return h


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module", params=NAMES)
def alone(request):
    """(name, prompt, answer, logits) of a seeded request that runs alone."""
    h = recorder(request.param)
    ids = prompt(request.param, 21)
    return request.param, ids, h.generate(0, ids, 24), h.logits[0]


@pytest.mark.parametrize("chunk", [1, 2, 7, 8, 20])
def test_chunks(alone, chunk):
    name, ids, answer, logits = alone
    h = recorder(name)
    assert h.generate(0, ids, 24, chunk) == answer
    assert same(h.logits[0], logits)


@pytest.mark.parametrize(("lane", "page_tokens", "threads"), [(5, 1, 1), (8, 16, 3), (2, 64, 2)])
def test_lanes_pages_and_threads(alone, lane, page_tokens, threads):
    name, ids, answer, logits = alone
    h = recorder(name, page_tokens=page_tokens, threads=threads, seed=4)
    assert h.generate(lane, ids, 24) == answer
    assert same(h.logits[lane], logits)


@pytest.mark.parametrize("mates", [1, 2, 4, 5, 6, 7, 8])
def test_batch_mates(alone, mates):
    """Mates come and go, and a prompt of theirs shares a step with the request's decoding."""
    name, ids, answer, logits = alone
    h = recorder(name)
    rng = np.random.default_rng(mates)
    lane = 4
    others = [i for i in range(9) if i != lane][:mates]
    last = {m: h.prefill(m, prompt(name, 3 + m, seed=m)) for m in others}
    got = [h.prefill(lane, ids)]
    while len(got) < 24:
        rows = {m: [last[m]] for m in others if rng.random() < 0.8}
        if len(got) == 9:
            h.reset(others[0])
            rows[others[0]] = prompt(name, 17, seed=99)
        order = [int(m) for m in rng.permutation([*rows, lane])]
        tokens = h.feed({m: rows[m] if m != lane else got[-1:] for m in order})
        for m, token in zip(order, tokens, strict=True):
            if m == lane:
                got.append(token)
            else:
                last[m] = token
    assert got == answer
    assert same(h.logits[lane], logits)


@pytest.mark.parametrize("after", [1, 8, 23])
def test_pause_and_resume(alone, after):
    """A paused request loses its pages and is fed again, prompt and answer, in one prefill: on other pages."""
    name, ids, answer, logits = alone
    h = recorder(name)
    got = [h.prefill(3, ids)]
    while len(got) < after:
        got += h.feed({3: got[-1:]})
    h.reset(3)
    h.prefill(6, prompt(name, 30))
    got += h.feed({3: ids + got})
    while len(got) < 24:
        got += h.feed({3: got[-1:]})
    assert got == answer
    assert same(h.logits[3], logits)


def test_smollm2(smollm2, smollm2_engine):
    """The same on the real model: alone, in chunks, among others that decode and prefill, and after a pause."""
    h = smollm2_engine
    tokenizer = smollm2.tokenizer()
    ids = tokenizer.encode("Write a short story about a lighthouse keeper who finds a map.")
    others = [tokenizer.encode(text) for text in ("def main():", "The capital of Mali is", "1, 1, 2, 3, 5,")]
    for lane in range(4):
        h.reset(lane)
        h.params(lane, seed=77, temperature=1.0, top_p=0.9)
    count = 40
    alone = h.generate(0, ids, count)
    h.reset(0)
    assert h.generate(0, ids, count, chunk=5) == alone
    h.reset(0)
    last = {m: h.prefill(m, others[m - 1]) for m in (1, 2, 3)}
    got = [h.prefill(0, ids)]
    while len(got) < count:
        rows = {m: [last[m]] for m in last if len(got) % (m + 1)}
        out = h.feed(rows | {0: got[-1:]})
        got.append(out.pop())
        last |= zip(rows, out, strict=True)
        if len(got) == 20:
            h.reset(0)
            got += h.feed({0: ids + got})
    assert got == alone
    for lane in range(4):
        h.reset(lane)
        h.params(lane)
