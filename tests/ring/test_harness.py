"""The fault tests can fail: every rule that is taken out of the client or the transport breaks a named invariant."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from blink.ring import words
from blink.ring.client import RingClient
from blink.ring.doorbell import Doorbell
from blink.ring.partition import Partition
from blink.ring.reader import Reader
from blink.ring.recovery import Survey
from blink.ring.stream import Stream
from tests.ring.adversarial import AdversarialTransport
from tests.ring.test_faults import ACTIONS, FAULTS, make_world, play

Patch = Callable[[pytest.MonkeyPatch], None]


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AdversarialTransport, "fenced", False)


def _ring_before_completion(patch: pytest.MonkeyPatch) -> None:
    def expect(self: Doorbell, stream: Stream) -> None:
        stream.in_ring = True
        self._waiting.append(stream)

    patch.setattr(Doorbell, "expect", expect)


def _two_doorbells_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Doorbell, "in_flight", property(lambda self: False, lambda self, value: None), raising=False)


def _ring_highest_completed(patch: pytest.MonkeyPatch) -> None:
    def following(self: Doorbell) -> int | None:
        done = [s for s in self._waiting if s.in_ring]
        if self.in_flight or not done:
            return None
        for stream in done:
            self._waiting.remove(stream)
        return max(stream.seq for stream in done)

    patch.setattr(Doorbell, "next", following)


def _trust_any_hint(patch: pytest.MonkeyPatch) -> None:
    def from_hint(self: Reader, stream: Stream, count: int, w1: int) -> list[int] | None:
        new = count - stream.have
        if new > 2 or stream.request is None or stream.request.logprobs is not None:
            return None
        return [w1 >> 24 & 0xFFFFF, w1 >> 44][-new:]

    patch.setattr(Reader, "_from_hint", from_hint)


def _trust_any_times(patch: pytest.MonkeyPatch) -> None:
    unpack = words.unpack_w2
    patch.setattr("blink.ring.words.unpack_w2", lambda w2, gen: unpack(w2, w2 >> 60))


def _free_under_work_requests(patch: pytest.MonkeyPatch) -> None:
    settle = Partition.settle

    def careless(self: Partition, stream: Stream) -> None:
        stream.finished = stream.finished or stream.cancelled
        stream.tickets = 0
        settle(self, stream)

    patch.setattr(Partition, "settle", careless)


def _restart_without_roll_forward(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Survey, "terminal", property(lambda self: self.w0 >= 0))


def _no_reconciliation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("blink.ring.link.reconcile", lambda partition, survey: [])


def _cancel_before_commit(patch: pytest.MonkeyPatch) -> None:
    def cancel(self: RingClient, stream: Stream) -> None:
        if not stream.cancelled and not stream.finished and self._link.up:
            stream.cancelled = True
            assert self._link.partition is not None
            self._work.write([self._link.partition.cancel_write(stream)], lambda: None)

    patch.setattr(RingClient, "_cancel", cancel)


MUTANTS: list[tuple[Patch, str]] = [
    (_no_fence, "2 3 5 6 7 10 11"),
    (_ring_before_completion, "3"),
    (_two_doorbells_in_flight, "10"),
    (_ring_highest_completed, "3 10"),
    (_trust_any_hint, "6"),
    (_trust_any_times, "15"),
    (_free_under_work_requests, "3 5 7"),
    (_restart_without_roll_forward, "3 7 10"),
    (_no_reconciliation, "3 10"),
    (_cancel_before_commit, "7 11"),
]


@pytest.mark.parametrize(("mutant", "invariants"), MUTANTS, ids=lambda p: getattr(p, "__name__", None))
def test_a_broken_client_is_caught(mutant: Patch, invariants: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    violation = next(filter(None, map(violated, range(300))), None)
    assert violation is not None, "not caught in 300 runs"
    assert violation.split(":", 1)[0] in invariants.split(), f"caught by the wrong check: {violation}"


def violated(seed: int) -> str | None:
    """What a run with ``seed`` violates."""
    rng = random.Random(seed)
    try:
        play(make_world(seed), [rng.choice(ACTIONS * 2 + FAULTS) for _ in range(80)])
    except AssertionError as e:
        return str(e)
    return None
