"""The pieces under the client: arena, hashes, slot tracker, request records, limits."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.core import crc32c, words_hash
from blink.ring.arena import Arena, ArenaFullError
from blink.ring.client import RingClient, RingFull, SamplingParams, SubmitRequest
from blink.ring.header import Header
from blink.ring.layout import EXTENT_ALIGN, REQUEST, Flag, Geometry, logprob_stride
from blink.ring.request import null_request
from blink.ring.shares import queue_cap, share_of, worker_share
from blink.ring.slots import SlotTracker
from blink.ring.stream import TokenLogprob, parse_logprobs
from blink.ring.words import MASK32
from tests.ring.adversarial import AdversarialTransport, RingMemory

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
U32 = st.integers(0, 2**32 - 1)


# Arena


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 700)), max_size=80), st.integers(0, 2**32))
def test_extents_never_overlap_and_all_come_back(steps: list[tuple[bool, int]], seed: int) -> None:
    rng, arena = random.Random(seed), Arena(4096, 2048)
    taken: dict[int, int] = {}
    for allocate, size in steps:
        if allocate:
            try:
                at = arena.allocate(size)
            except ArenaFullError:
                bounds = sorted([(4096, 0), *taken.items(), (4096 + 2048, 0)])
                gaps = [b - (a + -(-n // EXTENT_ALIGN) * EXTENT_ALIGN) for (a, n), (b, _) in pairwise(bounds)]
                assert max(gaps) < max(size, EXTENT_ALIGN), "there was room"
                continue
            assert at % EXTENT_ALIGN == 0
            assert 4096 <= at <= at + size <= 4096 + 2048
            assert all(at + max(size, 1) <= o or o + n <= at for o, n in taken.items())
            taken[at] = max(size, 1)
        elif taken:
            at = rng.choice(list(taken))
            arena.free(at)
            del taken[at]
    for at in taken:
        arena.free(at)
    assert arena.free_bytes == 2048
    assert arena.allocate(2048) == 4096, "free extents were not joined"


def test_a_full_arena_refuses_and_a_stranger_cannot_be_freed() -> None:
    arena = Arena(0, 192)
    first, second = arena.allocate(1), arena.allocate(65)
    assert (first, second) == (0, 64)
    with pytest.raises(ArenaFullError, match="no 64 consecutive bytes among 0 free ones"):
        arena.allocate(1)
    arena.free(first)
    with pytest.raises(KeyError):
        arena.free(first)
    assert arena.allocate(64) == 0, "first fit"


# Hashes


def test_crc32c_is_that_of_rfc_3720() -> None:
    """Test vectors of RFC 3720, appendix B.4."""
    for data, crc in (
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ):
        assert crc32c(np.frombuffer(data, np.uint32)) == crc


@given(st.lists(U32, max_size=20), st.integers(0, 20))
def test_the_prompt_hash_adds_up(items: list[int], cut: int) -> None:
    array = np.array(items, np.uint32)
    whole = words_hash(array)
    assert whole == (words_hash(array[:cut]) + words_hash(array[cut:], min(cut, len(items)))) & MASK32


# Slots


def test_a_slot_rests_as_long_as_possible() -> None:
    tracker = SlotTracker(np.zeros(4, np.uint32))
    order = []
    for _ in range(6):
        slot = tracker.find()
        assert slot is not None
        tracker.take(slot)
        tracker.release(slot)
        order.append(slot)
    assert order == [0, 1, 2, 3, 0, 1]
    for slot in (2, 3, 0):
        tracker.take(slot)
    assert (tracker.find(), tracker.free) == (1, 1)
    tracker.take(1)
    assert (tracker.find(), tracker.free) == (None, 0)


# Requests

HEADER = Header(Geometry(4, 1, 8192, 8192), 7, 4, 16, 1000, 256, 64, 16, 32, bytes(32))


def request(**changes: Any) -> SubmitRequest:
    sampling = {k: changes.pop(k) for k in list(changes) if k in SamplingParams.__dataclass_fields__}
    base = SubmitRequest(np.array([5, 6, 7], np.uint32), 9, SamplingParams(**{"seed": 1 << 63, **sampling}))
    return replace(base, **changes)


def test_a_record_says_what_was_asked() -> None:
    asked = request(
        stop_ids=(1, 2, 3, 4, 8, 9), logit_bias={3: -1.5, 4: 2.0}, logprobs=2, ignore_eos=True, min_tokens=4,
        deadline_ms=77, temperature=0.5, top_p=0.25, top_k=6, min_p=0.125, frequency=1.5, presence=-1.0, repetition=2.0,
    )  # fmt: skip
    payload = asked.words()
    extension = payload[3:]
    assert extension[:4].tolist() == [2, 2, 8, 9], "stop ids beyond four, after both counts"
    assert extension[4::2].tolist() == [3, 4]
    assert extension[5::2].view(np.float32).tolist() == [-1.5, 2.0]
    record = np.frombuffer(asked.encode(0xFFFFFFFF, 11, payload, 4096, 8192), REQUEST.dtype())[0]
    for name, value in {
        "gen": 0xFFFFFFFF, "seq": 11, "prompt_off": 4096, "prompt_len": 3, "max_tokens": 9, "out_off": 8192,
        "lp_off": 8192 + 40, "out_cap": 9, "flags": Flag.IGNORE_EOS | Flag.LOGPROBS, "temperature": 0.5, "top_p": 0.25,
        "top_k": 6, "min_p": 0.125, "frequency": 1.5, "presence": -1.0, "repetition": 2.0, "n_stop": 4,
        "seed": 1 << 63, "ext_off": 4096 + 12, "ext_words": 8, "deadline_ms": 77, "lp_n": 2, "min_tokens": 4,
        "prompt_hash": words_hash(payload),
    }.items():  # fmt: skip
        assert record[name] == value, name
    assert record["stop"].tolist() == [1, 2, 3, 4]
    assert int(record["crc"]) == crc32c(np.frombuffer(record.tobytes(), np.uint32)[:-1])
    assert asked.output_bytes == 40 + 9 * logprob_stride(2)


def test_a_request_is_laid_out_once_and_stays_so() -> None:
    asked = request(stop_ids=(1, 2, 3, 4, 8, 9), logit_bias={3: 1.0})
    asked.check(HEADER)
    assert asked.words() is asked.words()
    with pytest.raises(ValueError, match="read-only"):
        asked.words()[0] = 1
    assert asked.prompt.flags.writeable, "the caller's own array is as it was"


def test_the_share_of_a_worker_comes_back_from_the_header() -> None:
    for requests, workers, parts in ((24, 1, 2), (24, 5, 8), (1, 3, 4), (8192, 63, 64)):
        share = share_of(requests, workers)
        assert share * workers >= requests > (share - 1) * workers
        assert worker_share(queue_cap(share, parts), parts) == share
    assert worker_share(16, 1) == 16, "the only partition has all"


def test_a_null_request_is_whole_and_empty() -> None:
    record = np.frombuffer(null_request(3, 4), REQUEST.dtype())[0]
    assert (record["gen"], record["seq"], record["prompt_len"]) == (3, 4, 0)
    assert int(record["crc"]) == crc32c(np.frombuffer(record.tobytes(), np.uint32)[:-1])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": np.zeros(0, np.uint32)}, "prompt"),
        ({"prompt": np.array([1000], np.uint32)}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 254}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"min_tokens": 1 << 16}, "min_tokens"),
        ({"deadline_ms": 1 << 32}, "deadline_ms"),
        ({"deadline_ms": -1}, "deadline_ms"),
        ({"seed": 1 << 64}, "seed"),
        ({"top_k": -1}, "top_k"),
        ({"temperature": float("nan")}, "sampling"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias"),
        ({"logit_bias": {1000: 1.0}}, "stop_ids, logit_bias"),
        ({"stop_ids": (1000,)}, "stop_ids, logit_bias"),
        ({"logit_bias": dict.fromkeys(range(32), 1.0)}, "stop_ids, logit_bias"),
    ],
    ids=str,
)
def test_what_the_ring_cannot_carry_is_refused(changes: dict[str, Any], field: str) -> None:
    request().check(HEADER)
    with pytest.raises(ValueError, match=f"^{field}:"):
        request(**changes).check(HEADER)


@pytest.mark.parametrize(
    ("column", "value"), [(1, 3), (2, 1000), (0, 0x7FC00000), (4, 0x7FC00000)], ids=["n", "id", "chosen", "value"]
)
def test_a_logprob_record_that_breaks_its_layout_is_refused(column: int, value: int) -> None:
    row = np.array([0, 2, 5, 6, 0, 0], np.uint32)
    row[[0, 4, 5]] = np.array([-0.5, -0.25, -1.0], np.float32).view(np.uint32)
    assert parse_logprobs(row.view(np.uint8), 1, 2, 1000) == [TokenLogprob(-0.5, [(5, -0.25), (6, -1.0)])]
    row[column] = value
    with pytest.raises(ValueError, match="a logprob record"):
        parse_logprobs(row.view(np.uint8), 1, 2, 1000)


def test_unused_alternatives_are_not_looked_at() -> None:
    row = np.array([0, 1, 5, 0xFFFFFFFF, 0, 0x7FC00000], np.uint32)
    assert parse_logprobs(row.view(np.uint8), 1, 2, 1000) == [TokenLogprob(0.0, [(5, 0.0)])]


# Room


@pytest.mark.parametrize(
    ("geometry", "queue", "asked", "fits", "said"),
    [
        (Geometry(4, 1, 8192, 8192), 100, {}, 4, "no free slot"),
        (Geometry(64, 1, 4096, 8192), 100, {"prompt": np.ones(100, np.uint32)}, 9, "no 448 consecutive bytes"),
        (Geometry(64, 1, 8192, 4096), 100, {"max_tokens": 200}, 4, "no 832 consecutive bytes"),
        (Geometry(63, 3, 8192, 8192), 7, {}, 3, "all 3 places in the queue are taken"),
    ],
    ids=["slots", "input", "output", "queue"],
)
def test_room_runs_out_in_words_and_takes_nothing(
    geometry: Geometry, queue: int, asked: dict[str, Any], fits: int, said: str
) -> None:
    memory = RingMemory(geometry, queue_cap=queue)
    net = AdversarialTransport(memory, 0, random.Random(0))
    client = RingClient(net)
    for step in range(9):
        client.poll(step)
        net.settle()
    for _ in range(fits):
        client.submit(request(**asked))
    assert client._session is not None
    partition = client._session.partition
    before = (partition.seq, partition.slots.free, partition.inputs.free_bytes, partition.outputs.free_bytes)
    for _ in range(3):
        with pytest.raises(RingFull, match=said):
            client.submit(request(**asked))
    after = (partition.seq, partition.slots.free, partition.inputs.free_bytes, partition.outputs.free_bytes)
    assert before == after
