"""One behaviour at a time: what a request meets from its first sight to its end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.seam.batch import Control, Kind
from blink.ring.layout import Geometry, Phase, Reason, State
from blink.ring.words import Activity, Cancel
from tests.kernels.hash_engine import answer
from tests.kernels.world import World

VOCAB = 64
PROMPT = [3, 1, 4, 1, 5]


def world(geometry: Geometry | None = None, **changes: Any) -> World:
    """An appliance of two lanes; ``changes`` replaces fields of its configuration."""
    fields: dict[str, Any] = {
        "lanes": 2, "records": 4, "page_tokens": 4, "pages": 16, "max_context": 32, "vocab": VOCAB, "batch_tokens": 8,
        "ext_words": 64,
    }  # fmt: skip
    return World(SchedulerConfig(**fields | changes), geometry or Geometry(4, 1, 8192, 8192))


def run_raw(w: World, slot: int, limit: int = 50) -> Reason:
    """Step until ``slot`` of worker 0 has ended; for requests that :class:`World` does not know of."""
    for _ in range(limit):
        if w.workers[0].ended(slot):
            return w.workers[0].status(slot).reason
        w.step()
    raise AssertionError("it never ended")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt_len": 0}, Reason.ERR_EMPTY),
        ({"prompt_len": 29}, Reason.ERR_TOO_LONG),  # with the 4 tokens asked for, one more than max_context
        ({"prompt_len": 0xFFFFFFFF}, Reason.ERR_TOO_LONG),
        ({"max_tokens": 0xFFFFFFFF}, Reason.ERR_TOO_LONG),
        ({"max_tokens": 0}, Reason.ERR_PARAMS),
        ({"prompt_hash": 1}, Reason.ERR_HASH),
        ({"prompt_off": 0}, Reason.ERR_BOUNDS),
        ({"prompt_off": 1 << 63}, Reason.ERR_BOUNDS),
        ({"prompt_off": 2**64 - 64}, Reason.ERR_BOUNDS),
        ({"prompt_off": 4100}, Reason.ERR_BOUNDS),
        ({"out_off": 0}, Reason.ERR_BOUNDS),
        ({"out_off": 2**64 - 64}, Reason.ERR_BOUNDS),
        ({"out_off": 4098}, Reason.ERR_BOUNDS),
        ({"out_off": 4096 - 64, "out_cap": 20}, Reason.ERR_BOUNDS),  # wraps into the arena
        ({"prompt_off": 4096 - 64, "prompt_len": 20}, Reason.ERR_BOUNDS),
        ({"out_cap": 3}, Reason.ERR_BOUNDS),
        ({"out_cap": 0xFFFFFFFF}, Reason.ERR_BOUNDS),
        ({"flags": 2, "lp_off": 2**64 - 4}, Reason.ERR_BOUNDS),
        ({"flags": 2, "lp_off": 4096, "lp_n": 20, "out_cap": 60}, Reason.ERR_BOUNDS),
        ({"flags": 2, "lp_off": 4096, "lp_n": 21}, Reason.ERR_PARAMS),
        ({"flags": 4}, Reason.ERR_PARAMS),
        ({"temperature": float("nan")}, Reason.ERR_PARAMS),
        ({"temperature": -0.5}, Reason.ERR_PARAMS),
        ({"temperature": float("inf")}, Reason.ERR_PARAMS),
        ({"top_p": 0.0}, Reason.ERR_PARAMS),
        ({"top_p": 1.5}, Reason.ERR_PARAMS),
        ({"min_p": -1e-3}, Reason.ERR_PARAMS),
        ({"frequency": float("-inf")}, Reason.ERR_PARAMS),
        ({"presence": float("nan")}, Reason.ERR_PARAMS),
        ({"repetition": 0.0}, Reason.ERR_PARAMS),
        ({"n_stop": 5}, Reason.ERR_PARAMS),
        ({"n_stop": 1, "stop": [VOCAB, 0, 0, 0]}, Reason.ERR_TOKEN),
        ({"ext_words": 1}, Reason.ERR_PARAMS),
        ({"ext_words": 65}, Reason.ERR_PARAMS),
        ({"ext_words": 2, "ext_off": 8}, Reason.ERR_BOUNDS),
        ({"ext_words": 2, "ext_off": 4098}, Reason.ERR_BOUNDS),
        ({"gen": 9}, Reason.ERR_TORN),
        ({"seq": 9}, Reason.ERR_TORN),
        ({"crc": 1}, Reason.ERR_TORN),
    ],
)
def test_a_malformed_request_ends_alone_and_says_why(fields: dict[str, Any], reason: Reason) -> None:
    w = world(torn_ms=10)
    bystander = w.submit(0, PROMPT, 8)
    w.workers[0].submit(3, PROMPT, 4, **fields)
    assert run_raw(w, 3) is reason
    w.settle_known()
    assert bystander is not None
    assert bystander.end is Reason.LENGTH
    assert w.core.counters()["REJECTS"] == 1
    assert (w.core.counters()["TORN"] == 1) == (reason is Reason.ERR_TORN)


@pytest.mark.parametrize(
    ("ext", "reason"),
    [
        ([0, 0], Reason.LENGTH),
        ([2, 0, 1], Reason.ERR_PARAMS),
        ([0xFFFFFFFF, 0], Reason.ERR_PARAMS),
        ([0, 0x80000000], Reason.ERR_PARAMS),
        ([57, 0, *range(57)], Reason.ERR_PARAMS),
        ([1, 0, VOCAB], Reason.ERR_TOKEN),
        ([0, 1, VOCAB, 0], Reason.ERR_TOKEN),
        ([0, 1, 1, 0x7FC00000], Reason.ERR_PARAMS),
        ([0, 1, 1, 0x7F800000], Reason.ERR_PARAMS),
    ],
)
def test_an_extension_is_checked_word_by_word(ext: list[int], reason: Reason) -> None:
    w = world()
    w.workers[0].submit(0, PROMPT, 4, ext=ext)
    assert run_raw(w, 0) is reason


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    w = world()
    w.workers[0].submit(0, [1, VOCAB], 4)
    assert run_raw(w, 0) is Reason.ERR_TOKEN


def test_lane_parameters_are_the_requests_own() -> None:
    w = world(eos=(5, 9))
    w.submit(
        0, PROMPT, 4, stop=(7,), ext_stop=(8,), bias=((2, -1.5), (3, 4.0)), temperature=0.5, top_p=0.75, top_k=3,
        min_p=0.25, frequency=1.0, presence=-1.0, repetition=1.5, min_tokens=2,
    )  # fmt: skip
    assert w.step().kind is Kind.PREFILL
    lane = w.buffers.row_lane[0]
    p = w.buffers.lane_params[lane]
    expected = {
        "temperature": 0.5, "top_p": 0.75, "top_k": 3, "min_p": 0.25, "frequency": 1.0, "presence": -1.0,
        "repetition": 1.5, "min_tokens": 2, "prompt_len": 5, "n_stop": 4, "n_bias": 2,
    }  # fmt: skip
    assert {name: p[name].item() for name in expected} == expected
    assert w.buffers.lane_stop[lane, :4].tolist() == [5, 9, 7, 8], "the model's EOS ids, then the request's"
    assert w.buffers.lane_bias_ids[lane, :2].tolist() == [2, 3]
    assert w.buffers.lane_bias_values[lane, :2].tolist() == [-1.5, 4.0]
    w.settle()


@pytest.mark.parametrize("at", [0, 1, 5])
def test_min_tokens_admits_the_first_end_after_that_many(at: int) -> None:
    tokens = answer(PROMPT, 1, 12, VOCAB)
    later = tokens.index(tokens[at])  # the first time this token comes
    for min_tokens, reason in ((later, Reason.STOP_ID), (later + 1, Reason.LENGTH)):
        if tokens[at] in tokens[later + 1 :]:
            pytest.skip("the token comes twice")
        w = world()
        sent = w.submit(0, PROMPT, 12, stop=(tokens[at],), min_tokens=min_tokens)
        w.settle()
        assert sent is not None
        assert sent.seen is not None
        assert sent.seen.reason is reason
        assert sent.seen.count == (later + 1 if reason is Reason.STOP_ID else 12)


def test_claims_go_by_first_sight_then_by_a_rotating_partition() -> None:
    """Many pending, one record: what waits in the ring is served in order, and no partition is favoured."""
    w = world(Geometry(32, 2, 65536, 65536), lanes=1, records=1, claims_per_step=1)
    firsts = []
    for batch in range(6):
        early = [w.submit(1, PROMPT, 1), w.submit(0, PROMPT, 1)]
        w.step()
        late = [w.submit(0, PROMPT, 1), w.submit(1, PROMPT, 1)]
        w.settle()
        order = [s.seed for s in w.finished[-4:]]
        seeds = {s.seed for s in early if s}, {s.seed for s in late if s}
        assert set(order[:2]) == seeds[0], f"round {batch}: who came later was served earlier"
        assert set(order[2:]) == seeds[1]
        firsts.append(w.finished[-4].part)
        for _ in range(batch % 2):
            w.step()
    assert set(firsts) == {0, 1}, "one partition is always first"


def test_sequence_orders_claims_within_a_partition_not_the_slot() -> None:
    w = world(Geometry(8, 1, 65536, 65536), lanes=1, records=1, claims_per_step=1)
    writer = w.workers[0]
    for slot in (6, 2, 5, 0, 7):
        writer.submit(slot, PROMPT, 1)
    order: list[int] = []
    while len(order) < 5:
        w.step()
        order += [s for s in (6, 2, 5, 0, 7) if writer.ended(s) and s not in order]
    assert order == [6, 2, 5, 0, 7]


def test_a_pending_request_without_a_record_is_cancelled_at_once() -> None:
    w = world(records=2)
    sent = [w.submit(0, PROMPT, 20) for _ in range(4)]
    w.step()
    assert sent[3] is not None
    w.cancel(sent[3])
    w.step()
    assert sent[3].seen is not None
    assert sent[3].seen.reason is Reason.CANCELLED
    w.settle()


def test_a_cancel_of_another_generation_changes_nothing() -> None:
    w = world()
    sent = w.submit(0, PROMPT, 6)
    assert sent is not None
    for word in (Cancel.pack(gen=sent.gen + 1), Cancel.pack(gen=sent.gen - 1), sent.gen, 0, 2**64 - 1):
        w.workers[0].cmd["cancel"][sent.slot] = word
        w.step()
    w.settle()
    assert sent.seen is not None
    assert sent.seen.reason is Reason.LENGTH


def test_a_deadline_counts_from_first_sight_wherever_the_request_waits() -> None:
    w = world(records=2, lanes=1, batch_tokens=8)
    running, waiting, pending = (w.submit(0, PROMPT, 27, deadline_ms=8) for _ in range(3))
    for _ in range(8):
        w.step()
    assert not w.finished
    for _ in range(3):
        w.step()
    for sent in (running, waiting, pending):
        assert sent is not None
        assert sent.seen is not None
        assert sent.seen.reason is Reason.DEADLINE
    w.check_balance()


def test_a_partition_that_falls_silent_loses_its_requests_and_no_others() -> None:
    w = world(Geometry(8, 2, 8192, 8192), alive_ms=50)
    w.hostile = (1,)  # World beats for the others only
    writer = w.workers[1]
    w.advance(10_000)
    writer.submit(0, PROMPT, 27)  # silence before the first request does not count
    w.step()
    mine = w.submit(0, PROMPT, 27)
    assert not writer.ended(0)
    w.advance(49)
    w.step()
    assert not writer.ended(0)
    w.advance(5)
    w.step()
    w.step()
    assert writer.status(0).reason is Reason.ORPHANED
    w.settle_known()
    assert mine is not None
    assert mine.seen is not None
    assert mine.seen.reason is Reason.LENGTH


def test_a_bad_doorbell_is_counted_once_and_the_good_one_stands() -> None:
    w = world()
    writer = w.workers[0]
    sent = w.submit(0, PROMPT, 2)
    w.step()
    writer.f_head["db"][0] = 0x1234
    for _ in range(3):
        w.step()
    assert w.core.counters()["DOORBELL_BAD"] == 1
    writer.ring_bell(writer.seq - 1)  # backwards
    w.step()
    assert int(writer.g_head["db_seen"][0]) == writer.seq
    w.settle()
    assert sent is not None


def test_what_is_not_rung_is_not_claimed() -> None:
    w = world()
    writer = w.workers[0]
    writer.write_words(0, PROMPT)
    writer.request[0] = writer.make(0, 1, 1, PROMPT, 4)
    writer.commit(0, 1, 1)
    for _ in range(5):
        w.step()
    assert writer.status(0).state is State.EMPTY
    writer.ring_bell(1)
    assert run_raw(w, 0) is Reason.LENGTH


def test_a_record_that_was_torn_is_claimed_when_it_becomes_whole() -> None:
    w = world(torn_ms=100)
    writer = w.workers[0]
    writer.submit(0, PROMPT, 4, crc=1)
    for _ in range(20):
        w.step()
    assert not writer.ended(0)
    assert w.core.counters()["TORN"] == 1
    writer.request[0] = writer.make(0, 1, writer.seq, PROMPT, 4)
    assert run_raw(w, 0) is Reason.LENGTH
    assert int(writer.g_head["torn"][0]) == 1


def test_a_pending_request_may_be_committed_again_under_another_sequence_number() -> None:
    w = world(records=2)
    w.submit(0, PROMPT, 6), w.submit(0, PROMPT, 6)
    writer = w.workers[0]
    writer.submit(3, PROMPT, 4)
    w.step()
    writer.seq += 1
    writer.request[3] = writer.make(3, 1, writer.seq, PROMPT, 4)
    writer.commit(3, 1, writer.seq)
    writer.ring_bell(writer.seq)
    assert run_raw(w, 3) is Reason.LENGTH


def test_a_worker_that_always_has_a_torn_record_does_not_hold_up_the_stop() -> None:
    w = world(torn_ms=10)
    writer = w.workers[0]
    w.core.request(Control.STOP)
    for turn in range(30):
        for slot in range(4 if turn >= 5 else 2):  # staggered, so that there is no moment without one
            if writer.ended(slot) or writer.next_gen(slot) == 1:
                writer.submit(slot, PROMPT, 4, crc=1)
        if w.core.step(w.now + turn * 1_000_000).kind is Kind.STOP:
            break
    assert 10 <= turn < 15


def test_the_request_in_the_ring_is_not_read_after_the_claim() -> None:
    w = world()
    sent = w.submit(0, PROMPT, 10)
    w.step()
    assert sent is not None
    w.workers[0].request[sent.slot] = np.zeros(1, w.workers[0].request.dtype)[0]
    off = w.workers[0].in_off(sent.slot)
    w.workers[0].f[off : off + 64] = 0xFF
    w.settle()


def test_a_batch_that_is_not_done_is_decided_again_and_the_ring_is_still_served() -> None:
    w = world()
    running = w.submit(0, PROMPT, 4)
    assert running is not None
    first = w.decide()
    beat = int(w.workers[0].g_head["beat"][0])
    late = w.submit(0, PROMPT, 4)
    assert late is not None
    assert w.decide() == first
    assert w.core.begin(w.now) is None
    assert int(w.workers[0].g_head["beat"][0]) == beat + 1
    assert w.workers[0].status(late.slot).state is State.PREFILL_PROCESSING
    w.engine.run()
    running.ran = True  # which `w` did not see
    w.settle()


def test_phase_and_budget_are_published_before_a_batch_runs() -> None:
    w = world(step_budget_ms=1234)
    head = w.workers[0].g_head
    w.submit(0, PROMPT, 4)
    seen = []
    for _ in range(8):
        w.step()
        activity = Activity(head["activity"][0])
        seen.append((activity.phase, activity.budget_ms))
    assert seen[0] == (2, 1234)
    assert seen[1] == (3, 1234)
    assert seen[-1] == (1, 0)
    w.request(Control.DRAIN)
    w.stop()
    assert Activity(head["activity"][0]).phase == Phase.STOPPED


def test_pub_seq_moves_exactly_when_a_status_of_the_partition_does() -> None:
    w = world(Geometry(8, 2, 8192, 8192))
    w.submit(0, PROMPT, 3)
    heads = [writer.g_head for writer in w.workers]
    before = [writer.statuses.copy() for writer in w.workers]
    pub = [0, 0]
    for _ in range(10):
        w.step()
        for part in (0, 1):
            changed = bool((w.workers[part].statuses != before[part]).any())
            now = int(heads[part]["pub_seq"][0])
            assert (now > pub[part]) == changed
            pub[part], before[part] = now, w.workers[part].statuses.copy()
    assert pub[0] > 0
    assert pub[1] == 0


@pytest.mark.parametrize(
    "bad", [{"launch_window": 1}, {"pages": 7}, {"batch_tokens": 1}, {"records": 1}, {"eos": (1,) * 9}]
)
def test_a_configuration_that_cannot_work_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        world(**bad)
