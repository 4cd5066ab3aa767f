"""A client, the adversarial network and a scheduler in one deterministic world that checks the invariants as it goes.

The numbers in the assertions are those of docs/protocol.md, section Invariants.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from blink.ring import words
from blink.ring.client import Handle, RingClient, RingFull, RingUnavailable, SamplingParams, SubmitRequest, Update
from blink.ring.layout import COMMAND, F_HEAD, STATUS, Geometry, Reason, State
from blink.ring.transport import Region
from tests.ring.adversarial import AdversarialTransport, Operation, RingMemory
from tests.ring.toy import expected_logprob, expected_tokens

SMALL = Geometry(slots=4, parts=1, input_bytes=4096, output_bytes=8192)


class SchedulerUnderTest(Protocol):
    """What moves the scheduler's side of the world."""

    def step(self) -> None:
        """A little progress."""


@dataclass
class Track:
    """One request as the user of the client sees it."""

    handle: Handle
    request: SubmitRequest
    expected: list[int]
    tokens: list[int] = field(default_factory=list)
    cancelled: bool = False
    end: Reason | str | None = None


class Monitor:
    """Watches every word of the ring between the steps of a world, whoever writes it."""

    def __init__(self, memory: RingMemory) -> None:
        self._g, self._f = memory.region(Region.G, 0), memory.region(Region.F, 0)
        self._geometry = memory.geometry
        self._w0 = self.status()
        self._db: int | None = None
        self._db = self.db()
        self.started: list[tuple[int, int]] = []  # (slot, gen16) in order of first sight
        self.requests: dict[int, SubmitRequest] = {}  # slot → the committed one
        self.offsets: dict[int, int] = {}
        self._written: dict[int, list[int]] = {}

    def status(self) -> list[int]:
        at, n = self._geometry.status_off, self._geometry.slots_per_part
        return self._g[at : at + STATUS.size * n].view(np.uint64)[:: STATUS.size // 8].tolist()

    def times(self, handle: Handle) -> words.Times | None:
        at = self._geometry.status_off + STATUS.size * handle.slot + STATUS.offset("w2")
        return words.times_of(int(self._g[at : at + 8].view(np.uint64)[0]), handle.gen)

    def db(self) -> int | None:
        return words.rung(int(self._f[:8].view(np.uint64)[F_HEAD.offset("db") // 8]))

    def check(self) -> None:
        """Compare with the last look. Raises AssertionError naming the invariant."""
        db = self.db()
        if self._db is not None:
            assert db is not None, "10: the doorbell lost its complement"
            assert not words.after(self._db, db), f"10: the doorbell went from {self._db} back to {db}"
        self._db = db
        now = self.status()
        for slot, (a, b) in enumerate(zip(self._w0, now, strict=True)):
            if a != b:
                self._changed(slot, words.W0(a), words.W0(b))
        self._w0 = now

    def _changed(self, slot: int, old: words.Status, new: words.Status) -> None:
        if new.gen != old.gen:
            assert old.state in (State.EMPTY, State.DECODE_COMPLETED), "5: a generation was left before its end"
            assert new.gen == (old.gen + 1) & 0xFFFF, "2: a generation was skipped or claimed again"
            self.started.append((slot, new.gen))
            self._written[slot] = []
        else:
            assert old.state != State.DECODE_COMPLETED, "5: a status changed after the end"
            assert new.count >= old.count, "4: the count decreased"
        if new.count and slot in self.offsets:
            at = self.offsets[slot]
            tokens = self._g[at : at + 4 * new.count].view(np.uint32).tolist()
            before = self._written.get(slot, [])
            assert tokens[: len(before)] == before, "4: a published token changed"
            self._written[slot] = tokens


class World:
    """Everything of one run. All chance comes from ``rng``."""

    def __init__(self, memory: RingMemory, rng: random.Random) -> None:
        self.memory, self.rng = memory, rng
        self._stale: list[Operation] = []
        self.monitor = Monitor(memory)
        self.now = 100.0
        self.tracks: list[Track] = []
        self._by_handle: dict[Handle, Track] = {}
        self.submitted: dict[tuple[int, int, int], list[int]] = {}  # (slot, gen, seq) → prompt, the latest
        self.scheduler: SchedulerUnderTest | None = None
        self._start()

    def _start(self) -> None:
        self.net = AdversarialTransport(self.memory, 0, self.rng, self._stale)
        self.client = RingClient(self.net, link_timeout_s=30.0)

    # Actions

    def step_net(self, count: int) -> None:
        for _ in range(count):
            self.net.step()
            self.monitor.check()

    def step_scheduler(self, count: int) -> None:
        assert self.scheduler is not None
        for _ in range(count):
            self.scheduler.step()
            self.monitor.check()

    def submit(self) -> None:
        rng, vocab = self.rng, self.memory.header.vocab
        prompt = np.array([rng.randrange(vocab) for _ in range(rng.choice((1, 2, 5, 9)))], np.uint32)
        bias = {5: 1.0} if rng.random() < 0.2 else {}
        stop = tuple(range(990, 990 + rng.choice((0, 3, 6)))) if rng.random() < 0.3 else ()
        request = SubmitRequest(
            prompt,
            rng.choice((1, 2, 4, 11)),
            SamplingParams(seed=rng.getrandbits(64), temperature=0.0, logit_bias=bias),
            stop_ids=stop,
            ignore_eos=True,
            min_tokens=1000,
            logprobs=rng.choice((None, None, 0, 3)),
        )
        busy_f, busy_g = self.net.in_flight(Region.F), self.net.in_flight(Region.G)
        try:
            handle = self.client.submit(request)
        except (RingFull, RingUnavailable):
            return
        stream = self.client._session.partition.streams[handle.slot]
        size = request.words().nbytes
        assert not _overlaps(busy_f, stream.prompt_off, size), "7: an input extent was reused under a work request"
        assert not _overlaps(busy_g, stream.out_off, request.output_bytes), "7: an output extent, under a read"
        old = words.W0(self.monitor.status()[handle.slot])
        assert old.state in (State.EMPTY, State.DECODE_COMPLETED), "7: a slot was reused before its end"
        assert old.gen == (handle.gen - 1) & 0xFFFF, "7: a slot was reused before its generation was claimed"
        self.submitted[handle.slot, handle.gen, stream.seq] = prompt.tolist()
        self.monitor.requests[handle.slot], self.monitor.offsets[handle.slot] = request, stream.out_off
        track = Track(handle, request, expected_tokens(prompt.tolist(), request.max_tokens, vocab))
        self.tracks.append(track)
        self._by_handle[handle] = track

    def cancel(self) -> None:
        running = [t for t in self.tracks if t.end is None]
        if running:
            track = self.rng.choice(running)
            track.cancelled = True
            self.client.cancel(track.handle)

    def poll(self, seconds: float = 0.001) -> None:
        self.now += seconds
        for update in self.client.poll(self.now):
            self._take(update)
        self.monitor.check()

    def _take(self, update: Update) -> None:
        track = self._by_handle[update.handle]
        assert track.end is None, "6: an update after the last one"
        lp_n = track.request.logprobs
        track.tokens += update.tokens
        assert track.tokens == track.expected[: len(track.tokens)], "6: the delivered tokens are no prefix"
        if lp_n is not None:
            assert update.logprobs == [expected_logprob(t, lp_n, self.memory.header.vocab) for t in update.tokens], (
                "6: a logprob record belongs to another token"
            )
        else:
            assert update.logprobs is None
        if update.error is not None:
            assert update.reason is None
            track.end = update.error
        if update.reason is not None:
            track.end = update.reason
            allowed = {Reason.LENGTH} | ({Reason.CANCELLED} if track.cancelled else set())
            assert update.reason in allowed, f"11: {update.reason.name} hit a request that nobody cancelled"
            if update.reason is Reason.LENGTH:
                assert track.tokens == track.expected, "6: delivered and published tokens differ at the end"
            published = self.monitor.times(update.handle)
            assert published is not None, "15: an end without times"
            assert update.times in (None, published), "15: the times of another generation"
            count = words.W0(self.monitor.status()[update.handle.slot]).count
            assert len(track.tokens) == count, "6: delivered and published counts differ at the end"

    def cut(self, reachable: bool = True) -> None:
        self.net.cut(reachable)
        self.monitor.check()

    def mend(self) -> None:
        self.net.reachable = True

    def crash(self) -> None:
        """Kill the frontend and start another; its streams are gone."""
        self.net.cut()
        for track in self.tracks:
            if track.end is None:
                track.end = "frontend crashed"
        self._by_handle.clear()
        self._start()
        self.monitor.check()

    def quiesce(self, rounds: int = 4000) -> None:
        """Let everything end. Raises AssertionError where something is left."""
        self.mend()
        for _ in range(rounds):
            self.step_net(8)
            self.step_scheduler(8)
            self.poll()
            if self.client.health().link_up and not self.client._session.partition.streams:
                break
        else:
            raise AssertionError(f"10: requests never ended: {self.client.health()}")
        for _ in range(200):
            self.step_net(10)
            self.poll(0.0)
        self.check_balance()

    def check_balance(self) -> None:
        partition, geometry = self.client._session.partition, self.memory.geometry
        assert all(t.end is not None for t in self.tracks), "5: a request got no end"
        assert partition.slots.free == geometry.slots_per_part, "13: a slot leaked"
        assert partition.inputs.free_bytes == geometry.input_bytes, "13: an input extent leaked"
        assert partition.outputs.free_bytes == geometry.output_bytes, "13: an output extent leaked"
        assert partition.inherited == 0, "13: an inherited slot was counted twice"
        at, n = geometry.cmd_off, geometry.slots_per_part
        commits = self.memory.region(Region.F, 0)[at : at + COMMAND.size * n].view(np.uint32).reshape(n, 4)
        for slot, (w0, gen) in enumerate(zip(self.monitor.status(), commits[:, 0].tolist(), strict=True)):
            status = words.W0(w0)
            assert status.gen == gen & 0xFFFF, f"10: the commit of slot {slot} was never claimed"
            assert status.state in (State.EMPTY, State.DECODE_COMPLETED), f"10: slot {slot} never ended"


def _overlaps(ranges: list[tuple[int, int]], offset: int, size: int) -> bool:
    return any(offset < o + n and o < offset + size for o, n in ranges)
