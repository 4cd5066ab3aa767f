"""A whole appliance in one process, and what must hold of it: the oracle of the scheduler tests.

:class:`World` has several workers, the scheduler and an engine. What it expects is computed from the requests alone:
the answer of an unbatched run, first come first served, one end for every commit. It never looks into the scheduler's
memory (``check_integrity`` does, from within).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from blink.backend.scheduler.config import SchedulerConfig
from blink.backend.scheduler.host import Decision
from blink.engine.seam.batch import Control, Kind
from blink.engine.seam.buffers import BatchBuffers
from blink.ring.layout import Geometry, Reason, State, logprob_stride
from blink.ring.words import HINT_TOKEN_LIMIT, W1, Times, times_of
from tests.kernels.cpu_core import CpuCore
from tests.kernels.hash_engine import HashEngine, answer
from tests.kernels.ring_writer import Ring, Status, Writer

MS = 1_000_000
PAUSED_MOST = 4  # prefill steps that an answer waits for, with mixed batches
ENDED_EARLY = {Reason.CANCELLED, Reason.DEADLINE, Reason.ORPHANED, Reason.ERR_STOPPED, Reason.ERR_DRAINING}


class Core(Protocol):
    """What a scheduler under test offers: the CPU's, or one on a device."""

    def step(self, now_ns: int = 0) -> Decision: ...
    def begin(self, now_ns: int = 0) -> Decision | None: ...
    def attend(self, now_ns: int = 0) -> None: ...
    def request(self, control: Control) -> None: ...
    def counters(self) -> dict[str, int]: ...
    def check_integrity(self) -> None: ...


Make = Callable[[SchedulerConfig, Geometry], tuple[Ring, BatchBuffers, Core]]


@dataclass
class Sent:
    """A well-formed request in flight, and what is known of its course."""

    part: int
    slot: int
    gen: int
    seq: int
    seed: int
    prompt: list[int]
    max_tokens: int
    options: dict[str, Any]
    sent_turn: int
    fails_at: int | None
    expected: list[int] = field(default_factory=list)
    end: Reason = Reason.NONE
    cancelled: bool = False
    seen: Status | None = None  # the last status of this generation
    ran: bool = False
    waited: int = 0  # batches since its last one
    published: list[int] = field(default_factory=list)
    clock: list[int] = field(default_factory=list)  # ns: the first scan after the submit, then every token's publish

    def __post_init__(self) -> None:
        """``end`` and ``expected`` of a run that nothing cuts short."""
        eos = () if self.options.get("ignore_eos") else self.options["eos"]
        stops = (*self.options.get("stop", ()), *self.options.get("ext_stop", ()))
        whole = answer(self.prompt, self.seed, self.max_tokens, self.options["vocab"])
        self.end = Reason.LENGTH
        for i, token in enumerate(whole):
            if self.fails_at is not None and len(self.prompt) + i >= self.fails_at:
                self.end, whole = Reason.ERR_ENGINE, whole[:i]
                break
            if i >= self.options.get("min_tokens", 0) and token in (*eos, *stops):
                self.end, whole = (Reason.EOS if token in eos else Reason.STOP_ID), whole[: i + 1]
                break
        self.expected = whole


class World:
    """``hostile`` partitions get no expectations: whatever stands in their F, the others must not notice."""

    def __init__(
        self, config: SchedulerConfig, geometry: Geometry, *, threads: int = 1, resident: bool = False,
        hostile: tuple[int, ...] = (), make: Make | None = None,
    ) -> None:  # fmt: skip
        if make:
            self.ring, self.buffers, self.core = make(config, geometry)
        else:
            self.ring, self.buffers = Ring(geometry, config), BatchBuffers(config.dims)
            self.core = CpuCore(config, geometry, self.ring.g, self.ring.f, self.buffers, threads=threads)
        self.config, self.resident, self.hostile = config, resident, hostile
        self.engine = HashEngine(self.buffers, config.pages, config.page_tokens, config.vocab, self._fault)
        self.workers: list[Writer] = [self.ring.writer(p) for p in range(geometry.parts)]
        self.now = 1000 * MS
        self.turn = 0
        self.sent: dict[tuple[int, int], Sent] = {}  # by partition and slot: the newest of the slot
        self.by_seed: dict[int, Sent] = {}
        self.finished: list[Sent] = []
        self.fails: dict[int, int] = {}
        self.accidents = 0  # steps that the engine failed as a whole
        self.window = 0  # launches in this window
        self.last = Decision(Kind.IDLE, 0, 0, 0)
        self.mode = Control.RUN
        self.beside: Callable[[Decision], None] = lambda decision: None

    def _fault(self, seed: int, position: int) -> bool:
        return position >= self.fails.get(seed, 1 << 30)

    def free_slot(self, part: int) -> int | None:
        """A slot of ``part`` that no request occupies."""
        taken = {slot for (p, slot) in self.sent if p == part}
        return next((s for s in range(self.workers[part].slots) if s not in taken), None)

    def submit(
        self, part: int, prompt: list[int], max_tokens: int, *, fails_at: int | None = None, **options: Any
    ) -> Sent | None:
        """Send a well-formed request from ``part``; None where all its slots are taken."""
        slot = self.free_slot(part)
        if slot is None:
            return None
        seed = len(self.by_seed) + 1
        if fails_at is not None:
            self.fails[seed] = fails_at
        writer = self.workers[part]
        ext_stop, bias = options.pop("ext_stop", ()), options.pop("bias", ())
        stop = options.pop("stop", ())
        wire: dict[str, Any] = dict(options)
        if ext_stop or bias:
            pairs = [w for token, value in bias for w in (token, int(np.float32(value).view(np.uint32)))]
            wire["ext"] = [len(ext_stop), len(bias), *ext_stop, *pairs]
        wire |= {"n_stop": len(stop), "stop": [*stop, 0, 0, 0, 0][:4]}
        gen, seq = writer.submit(slot, prompt, max_tokens, seed=seed, **wire)
        known = {**options, "stop": stop, "ext_stop": ext_stop, "eos": self.config.eos, "vocab": self.config.vocab}
        sent = Sent(part, slot, gen, seq, seed, prompt, max_tokens, known, self.turn, fails_at)
        self.sent[part, slot] = self.by_seed[seed] = sent
        return sent

    def cancel(self, sent: Sent) -> None:
        """Cancel ``sent``, which may have ended already."""
        if self.sent.get((sent.part, sent.slot)) is sent:
            sent.cancelled = True
            self.workers[sent.part].cancel(sent.slot, sent.gen)

    def advance(self, ms: int) -> None:
        """Let time pass, and let the honest workers beat."""
        self.now += ms * MS
        for part, writer in enumerate(self.workers):
            if part not in self.hostile:
                writer.f_head["alive"][0] += 1

    def request(self, control: Control) -> None:
        """Set the scheduler's control word."""
        self.mode = control
        self.core.request(control)

    def step(self) -> Decision:
        """One turn of driver, engine and readers, with every check."""
        decision = self.drive()
        self._read()
        return decision

    def drive(self) -> Decision:
        """One turn of driver and engine. ``beside`` is called between a batch's decision and its run."""
        self.turn += 1
        self.advance(1)
        self._note_first_sight()
        if self.resident:
            decision = self.core.begin(self.now)
            assert decision is not None, "the batch is done, but the scheduler thinks it runs"
            self.core.attend(self.now)
        else:
            decision = self.core.step(self.now)
        self.core.check_integrity()
        self._check_decision(decision)
        if decision.kind in (Kind.PREFILL, Kind.DECODE):
            self.beside(decision)
            self.accidents += self.engine.error_next
            self.engine.run()
            self._check_order()
            self._check_turns(decision)
        self.last = decision
        return decision

    def decide(self) -> Decision:
        """Only a decision, with a scan, at the present time."""
        self._note_first_sight()
        return self.core.step(self.now)

    def _note_first_sight(self) -> None:
        for sent in self.sent.values():
            sent.clock = sent.clock or [self.now]

    def _check_decision(self, d: Decision) -> None:
        window, c = self.config.launch_window, self.config
        if d.kind is Kind.RELAUNCH:
            assert window, "an unlimited launch window was used up"
            self.window = 0
        if d.kind not in (Kind.PREFILL, Kind.DECODE):
            return
        self.window += 1
        assert not window or self.window + (d.kind is Kind.PREFILL) <= window, "no room is left for the resumed decode"
        packed = c.pack()[0]
        size, buckets = (
            (d.tokens, packed["prefill_bucket"][: packed["n_prefill"]])
            if d.kind is Kind.PREFILL
            else (d.rows, packed["decode_bucket"][: packed["n_decode"]])
        )
        assert d.graph == next(i for i, b in enumerate(buckets) if b >= size), "not the tightest graph"

    def _check_order(self) -> None:
        """First come, first served: nobody runs while someone who came clearly earlier has not run yet."""
        for seed in self.engine.seeds:
            runs = self.by_seed.get(seed)
            if runs is None or runs.ran:
                continue
            runs.ran = True
            for other in self.sent.values():
                same_worker = other.part == runs.part and (other.seq - runs.seq) & 0xFFFFFFFF > 1 << 31
                # A resident driver scans after it plans, so what came within the turn is seen together.
                earlier = other.sent_turn < runs.sent_turn
                if not other.ran and (earlier or (same_worker and other.sent_turn <= runs.sent_turn)):
                    assert other.cancelled or self._past_deadline(other), f"{other.seed} was overtaken by {runs.seed}"

    def _check_turns(self, d: Decision) -> None:
        """Who decodes is in every decode step, waits for few prefill steps, and rides in those that have room."""
        running = [s for s in self.sent.values() if self._decodes(s)]
        for s in running:
            s.waited = 0 if s.seed in self.engine.seeds else s.waited + 1
            assert s.waited <= (PAUSED_MOST if self.config.mixed else 1), (
                f"request {s.seed} waits for too many prefills"
            )
        waiting = [s.seed for s in running if s.waited]
        assert not waiting or len(waiting) == len(running), f"only some wait: {waiting}"
        assert not waiting or d.kind is Kind.PREFILL, f"a decode step lacks {waiting}"
        if self.config.mixed and waiting and not self.hostile:
            assert d.tokens + len(running) > self.config.batch_tokens, f"there was room for {waiting}"

    def _decodes(self, sent: Sent) -> bool:
        status = self.workers[sent.part].status(sent.slot)
        return status.gen == sent.gen & 0xFFFF and status.state is State.DECODE_PROCESSING

    def _past_deadline(self, sent: Sent) -> bool:
        return bool(sent.options.get("deadline_ms"))

    def _read(self) -> None:
        for (part, slot), sent in list(self.sent.items()):
            writer = self.workers[part]
            status = writer.status(slot)
            if status.gen != sent.gen & 0xFFFF or (sent.seen is None and status.state is State.EMPTY):
                assert sent.seen is None, "a status went back to another generation"
                continue
            before = sent.seen
            assert before is None or status.count >= before.count, "count went back"
            assert status.reason is Reason.NONE or status.state is State.DECODE_COMPLETED
            decodes = status.state in (State.DECODE_PROCESSING, State.DECODE_PAUSED)
            assert not decodes or status.count > 0
            tokens = writer.tokens(slot)
            assert tokens[: len(sent.published)] == sent.published, "a published token changed"
            assert tokens == sent.expected[: len(tokens)], f"request {sent.seed} got a wrong answer"
            self._check_hint(writer, sent, status, tokens)
            if "logprobs" in sent.options:
                self._check_logprobs(writer, sent, tokens)
            sent.clock += [self.now] * (len(tokens) - len(sent.published))
            sent.seen, sent.published = status, tokens
            if status.state is State.DECODE_COMPLETED:
                self._check_end(sent, status)
                self._check_times(writer, sent)
                self.finished.append(sent)
                del self.sent[part, slot]

    def _check_hint(self, writer: Writer, sent: Sent, status: Status, tokens: list[int]) -> None:
        w1 = W1(writer.statuses["w1"][sent.slot])
        if status.count == 0 or (w1.count, w1.gen) != (status.count & W1.count.limit, sent.gen & W1.gen.limit):
            assert status.count == 0 or max(tokens[-2:]) >= HINT_TOKEN_LIMIT, "no hint for tokens that fit one"
            return
        assert [w1.prev, w1.last] == [0, *tokens][-2:], "the hint has other tokens than the arena"

    def _check_logprobs(self, writer: Writer, sent: Sent, tokens: list[int]) -> None:
        n = sent.options["logprobs"]
        at, stride = int(writer.request[sent.slot]["lp_off"]), logprob_stride(n)
        for i, token in enumerate(tokens):
            record = writer.g[at + i * stride : at + (i + 1) * stride].view(np.uint32)
            assert record[0:1].view(np.float32)[0] == -token / 8
            assert record[1] == n
            assert record[2 : 2 + n].tolist() == [(token + 1 + k) % self.config.vocab for k in range(n)]
            assert record[2 + n : 2 + 2 * n].view(np.float32).tolist() == [-k / 4 for k in range(n)]

    def _check_times(self, writer: Writer, sent: Sent) -> None:
        seen, *tokens = sent.clock
        expected = Times((tokens[0] - seen) // 1000, (tokens[-1] - seen) // 1000) if tokens else Times(0, 0)
        assert times_of(int(writer.statuses["w2"][sent.slot]), sent.gen) == expected

    def _check_end(self, sent: Sent, status: Status) -> None:
        whole = status.count == len(sent.expected)
        match status.reason:
            case Reason.CANCELLED:
                assert sent.cancelled
            case Reason.DEADLINE:
                assert sent.options.get("deadline_ms")
            case Reason.ERR_DRAINING:
                assert self.mode is not Control.RUN
                assert status.count == 0
            case Reason.ERR_STOPPED:
                assert self.mode is Control.STOP
            case Reason.ERR_ENGINE:
                assert (whole and sent.end is Reason.ERR_ENGINE) or self.accidents
            case reason:
                assert reason is sent.end, f"request {sent.seed} ended with {reason!r}, not {sent.end!r}"
                assert whole

    def settle(self, limit: int = 5000) -> None:
        """Step until every well-formed request has ended, and then see that everything was given back."""
        self.settle_known(limit)
        self.check_balance()

    def settle_known(self, limit: int = 5000) -> None:
        """Step until every well-formed request has ended and the scheduler is idle."""
        for _ in range(limit):
            if self.step().kind is Kind.IDLE and not self.sent:
                return
        raise AssertionError(f"{len(self.sent)} requests never ended: {[s.seen for s in self.sent.values()]}")

    def stop(self, limit: int = 5000) -> None:
        """Stop the scheduler and see that it accounts for everything."""
        if self.mode is Control.RUN:
            self.request(Control.STOP)
        for _ in range(limit):
            if self.step().kind is Kind.STOP:
                break
        else:
            raise AssertionError("the scheduler never stopped")
        self._read()
        assert not self.sent, "the scheduler stopped while a request had no end"
        self.check_balance()

    def check_balance_of(self, part: int) -> None:
        """Every request of ``part`` has ended, and its output arena holds nothing outside their extents."""
        assert not [s for s in self.sent.values() if s.part == part]
        writer = self.workers[part]
        rest = writer.g[writer.ring.geometry.out_off :].copy()
        for slot in range(writer.slots):
            start = writer.out_off(slot) - writer.ring.geometry.out_off
            rest[start : start + writer.out_bytes] = 0
        assert not rest.any(), "tokens outside every extent"

    def check_balance(self) -> None:
        """Every page, lane, record and request is accounted for, and nothing was written where it must not be."""
        c = self.core.counters()
        for what in ("PAGES", "LANES", "RECORDS"):
            assert c[f"{what}_TAKEN"] == c[f"{what}_RETURNED"], f"{what} are missing"
        ends = sum(n for name, n in c.items() if name.startswith("FINISHED_"))
        if not self.hostile:
            assert ends == len(self.by_seed), "ends and requests differ in number"
            assert c["CLAIMS"] == c["RECORDS_TAKEN"]
        assert c["OUTPUT_TOKENS"] >= sum(len(s.published) for s in self.finished)
        shown = self.ring.header["counters"][0]
        assert int(shown[0]) == c["STEPS"], "the header's counters lag"
        assert self.ring.intact(), "something was written beside the ring"
