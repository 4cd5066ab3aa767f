"""The fault tests can fail: every rule that is taken out of the client or the transport breaks a named invariant."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from blink.ring import words
from blink.ring.doorbell import Doorbell
from blink.ring.partition import Partition
from blink.ring.reader import Reader
from blink.ring.recovery import Survey
from blink.ring.request import SubmitRequest
from blink.ring.session import Session
from blink.ring.stream import Stream
from blink.ring.transport import LinkState
from tests.ring.adversarial import AdversarialTransport
from tests.ring.test_faults import ACTIONS, FAULTS, make_world, play

Patch = Callable[[pytest.MonkeyPatch], None]


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AdversarialTransport, "fenced", False)


def _ring_before_completion(patch: pytest.MonkeyPatch) -> None:
    def expect(self: Doorbell, stream: Stream) -> None:
        stream._in_ring = True
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
    def from_hint(self: Reader, stream: Stream, request: SubmitRequest, count: int) -> list[int] | None:
        new, w1 = count - stream.have, words.W1(stream.latest[1])
        if new > 2 or request.logprobs is not None:
            return None
        return [w1.prev, w1.last][-new:]

    patch.setattr(Reader, "_from_hint", from_hint)


def _trust_any_times(patch: pytest.MonkeyPatch) -> None:
    times_of = words.times_of
    patch.setattr("blink.ring.words.times_of", lambda w2, gen: times_of(w2, words.W2(w2).gen))


def _free_under_work_requests(patch: pytest.MonkeyPatch) -> None:
    settle = Partition.settle

    def careless(self: Partition, stream: Stream) -> None:
        if stream.unwanted:
            stream.end()
        stream._tickets = 0
        settle(self, stream)

    patch.setattr(Partition, "settle", careless)


def _restart_without_roll_forward(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Survey, "terminal", property(lambda self: self.w0 >= 0))


def _no_reconciliation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("blink.ring.client.reconcile", lambda partition, survey: [])


def _cancel_before_commit(patch: pytest.MonkeyPatch) -> None:
    def cancel(self: Session, stream: Stream) -> None:
        if self._work._transport.state is LinkState.UP and stream.cancel():
            self._work.write([self.partition.cancel_write(stream.slot, stream.gen)], lambda: None)

    patch.setattr(Session, "cancel", cancel)


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
