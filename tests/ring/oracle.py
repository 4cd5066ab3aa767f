"""The scheduler's side of the protocol, written literally from docs/protocol.md and one memory access at a time.

It shares no code with the real scheduler core. ``OracleScheduler.run`` is a generator that yields after every access to
ring memory, so that a test can let anything else happen in between.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from blink.core import crc32c, words_hash
from blink.ring import words
from blink.ring.layout import COMMAND, F_HEAD, G_HEAD, REQUEST, STATUS, Flag, Phase, Reason, State, logprob_stride
from blink.ring.transport import Region
from tests.ring.adversarial import RingMemory
from tests.ring.toy import expected_logprob, next_token

_REQUEST = REQUEST.dtype()


@dataclass
class Claim:
    """One claimed request."""

    slot: int
    gen: int
    seq: int
    prompt: list[int]
    request: np.void
    count: int = 0
    state: State = State.PREFILL_PROCESSING
    reason: Reason = Reason.NONE
    last: int = 0
    prev: int = 0
    seen: int = 0  # times of the oracle's clock, which counts its accesses
    times: words.Times = field(default_factory=lambda: words.Times(0, 0))


class OracleScheduler:
    """GPU side for partition 0. ``gens`` presets the generations claimed so far, to start near a wrap-around."""

    def __init__(self, memory: RingMemory, rng: random.Random, *, lanes: int = 3, gens: list[int] | None = None,
                 burst: int = 3) -> None:  # fmt: skip
        self.memory, self._rng, self._lanes, self._burst = memory, rng, lanes, burst
        self._g, self._f = memory.region(Region.G, 0), memory.region(Region.F, 0)
        n = memory.geometry.slots_per_part
        self.gens = list(gens) if gens is not None else [0] * n
        self.live: dict[int, Claim] = {}
        self.claims: list[Claim] = []
        self.torn = 0
        self._beat = self._pub_seq = self._clock = 0

    def _load(self, offset: int) -> int:
        return int(self._f[offset : offset + 8].view(np.uint64)[0])

    def _store(self, offset: int, value: int) -> None:
        self._clock += 1
        self._g[offset : offset + 8].view(np.uint64)[0] = value

    def _command(self, slot: int, name: str) -> int:
        return self._load(self.memory.geometry.cmd_off + COMMAND.size * slot + COMMAND.offset(name))

    def run(self) -> Iterator[None]:
        """The scheduler's loop, for ever."""
        while True:
            yield from self._scan()
            for slot in list(self.live):
                yield from self._advance(self.live[slot])
            self._beat += 1
            self._store(G_HEAD.offset("beat"), self._beat)
            self._store(G_HEAD.offset("activity"), words.Activity.pack(phase=Phase.DECODE, budget_ms=100))
            yield

    def _scan(self) -> Iterator[None]:
        db = words.rung(self._load(F_HEAD.offset("db")))
        yield
        if db is None:
            return
        seen: list[tuple[int, int, int]] = []
        for slot, gen in enumerate(self.gens):
            commit = self._command(slot, "commit")
            yield
            g, q = commit & words.MASK32, commit >> 32
            if g == (gen + 1) & words.MASK32 and not words.after(q, db):
                seen.append(((q - db) & words.MASK32, slot, q))
        seen.sort(key=lambda c: (c[0] - 1) & words.MASK32)  # oldest first; a distance of 0 is the newest
        for _, slot, q in seen:
            if len(self.live) >= self._lanes:
                return
            yield from self._claim(slot, (self.gens[slot] + 1) & words.MASK32, q)

    def _claim(self, slot: int, gen: int, seq: int) -> Iterator[None]:
        at, raw = self.memory.geometry.request_off + REQUEST.size * slot, bytearray()
        for offset in range(0, REQUEST.size, 8):
            raw += self._f[at + offset : at + offset + 8].tobytes()
            yield
        record = np.frombuffer(bytes(raw), _REQUEST)[0]
        if (int(record["gen"]), int(record["seq"])) != (gen, seq) or int(record["crc"]) != crc32c(
            np.frombuffer(bytes(raw), np.uint32)[:-1]
        ):
            self.torn += 1
            return
        prompt: list[int] = []
        begin, n = int(record["prompt_off"]), int(record["prompt_len"])
        for offset in range(begin, begin + 4 * n, 4):
            prompt.append(int(self._f[offset : offset + 4].view(np.uint32)[0]))
            yield
        extension = self._f[int(record["ext_off"]) :][: 4 * int(record["ext_words"])].view(np.uint32)
        claim = Claim(slot, gen, seq, prompt, record, seen=self._clock)
        if n:
            whole = np.concatenate([np.array(prompt, np.uint32), extension])
            if words_hash(whole) != int(record["prompt_hash"]):
                self.torn += 1
                return
            claim.last = prompt[-1]
        self.gens[slot] = gen
        self.claims.append(claim)
        self.live[slot] = claim
        if not n:
            yield from self._end(claim, Reason.ERR_EMPTY)
        else:
            yield from self._publish(claim)

    def _cancelled(self, claim: Claim) -> bool:
        word = self._command(claim.slot, "cancel")
        return words.Cancel(word).intact and words.Cancel(word).gen == claim.gen

    def _advance(self, claim: Claim) -> Iterator[None]:
        cancelled = self._cancelled(claim)
        yield
        if cancelled:
            yield from self._end(claim, Reason.CANCELLED)
            return
        if self._rng.random() < 0.1:
            claim.state = State.DECODE_PAUSED
            yield from self._publish(claim)
            return
        claim.state = State.DECODE_PROCESSING
        limit = int(claim.request["max_tokens"])
        for _ in range(min(self._rng.randint(1, self._burst), limit - claim.count)):
            yield from self._token(claim)
        if claim.count == limit:
            yield from self._end(claim, Reason.LENGTH)
        else:
            yield from self._publish(claim)

    def _token(self, claim: Claim) -> Iterator[None]:
        vocab, r = self.memory.header.vocab, claim.request
        token = next_token(claim.last, len(claim.prompt) + claim.count, vocab)
        claim.prev, claim.last = claim.last, token
        at = int(r["out_off"]) + 4 * claim.count
        self._g[at : at + 4].view(np.uint32)[0] = token
        yield
        if int(r["flags"]) & Flag.LOGPROBS:
            n = int(r["lp_n"])
            chosen, top = expected_logprob(token, n, vocab)
            data = (
                np.array([chosen], np.float32).tobytes()
                + np.array([n, *(t for t, _ in top)], np.uint32).tobytes()
                + np.array([v for _, v in top], np.float32).tobytes()
            )
            at = int(r["lp_off"]) + logprob_stride(n) * claim.count
            self._g[at : at + len(data)] = np.frombuffer(data, np.uint8)
            yield
        claim.count += 1
        now = self._clock - claim.seen
        claim.times = words.Times(claim.times.first_us if claim.count > 1 else now, now)

    def _end(self, claim: Claim, reason: Reason) -> Iterator[None]:
        claim.state, claim.reason = State.DECODE_COMPLETED, reason
        yield from self._publish(claim)
        del self.live[claim.slot]

    def _publish(self, claim: Claim) -> Iterator[None]:
        at = self.memory.geometry.status_off + STATUS.size * claim.slot
        hint = words.W1.pack(gen=claim.gen, count=claim.count, last=claim.last, prev=claim.prev)
        self._store(at + STATUS.offset("w1"), hint)
        yield
        if claim.state is State.DECODE_COMPLETED:
            first, last = claim.times
            self._store(at + STATUS.offset("w2"), words.W2.pack(gen=claim.gen, first=first, rest=last - first))
            yield
        w0 = words.W0.pack(gen=claim.gen, state=claim.state, reason=claim.reason, count=claim.count)
        self._store(at + STATUS.offset("w0"), w0)
        yield
        self._pub_seq += 1
        self._store(G_HEAD.offset("pub_seq"), self._pub_seq)
        yield
