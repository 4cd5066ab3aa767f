"""Generations, sequence numbers and counts wrap around."""

from __future__ import annotations

import pytest

from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.seam.batch import Kind
from blink.ring.layout import Geometry, Reason
from blink.ring.words import HINT_TOKEN_LIMIT, W1
from tests.kernels.test_single_requests import PROMPT, world
from tests.kernels.world import World


@pytest.mark.parametrize("gen", [0xFF - 2, 0xFFFF - 2, 0xFFFFFFFF - 2])
@pytest.mark.parametrize("seq", [0, 0x7FFFFFFF - 3, 0xFFFFFFFF - 3])
def test_generations_and_sequence_numbers_wrap(gen: int, seq: int) -> None:
    w = world()
    for slot in range(4):
        w.core.set_generation(slot, gen)
        w.workers[0].commit(slot, gen, seq)
    w.workers[0].seq = seq
    for _ in range(4):
        for _ in range(4):
            w.submit(0, PROMPT, 3)
        w.settle()
    assert len(w.finished) == 16
    assert {s.seen.reason for s in w.finished if s.seen} == {Reason.LENGTH}


def test_tokens_that_do_not_fit_the_hint_are_published_without() -> None:
    config = SchedulerConfig(lanes=1, records=1, page_tokens=8, pages=8, max_context=64, vocab=1 << 21, batch_tokens=16)
    w = World(config, Geometry(1, 1, 4096, 4096))
    sent = w.submit(0, [1], 60)
    w.settle()  # World compares every hint with the tokens
    assert sent is not None
    fit = [token < HINT_TOKEN_LIMIT for token in sent.published]
    assert True in fit
    assert False in fit


def test_the_hint_count_wraps() -> None:
    """An answer of more than 65536 tokens. The engine is the shortest possible: each token is the count so far."""
    n = 65_540
    config = SchedulerConfig(
        lanes=1, records=1, page_tokens=1024, pages=65, max_context=n + 8, vocab=1 << 17, batch_tokens=16
    )
    w = World(config, Geometry(1, 1, 4096, 1 << 19))
    writer, buffers = w.workers[0], w.buffers
    gen, _ = writer.submit(0, [1], n)
    count = 0
    while not writer.ended(0):
        if w.core.step().kind in (Kind.PREFILL, Kind.DECODE):
            buffers.out_token[0] = count
            buffers.control["done"][0] = buffers.control["step"][0]
        status, hint = writer.status(0), W1(writer.statuses["w1"][0])
        assert status.count == count
        assert (hint.count, hint.gen) == (count & W1.count.limit, gen)
        if count > 1:
            assert (hint.prev, hint.last) == (count - 2, count - 1)
        count += 1
    assert writer.tokens(0) == list(range(n))
