"""What a client knows about one occupied slot, and what it tells its user about it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from blink.ring.layout import LOGPROBS_MAX, Reason, State, logprob_stride
from blink.ring.request import SubmitRequest
from blink.ring.transport import Bytes
from blink.ring.words import Times

Chain = Sequence[tuple[int, bytes]]
"""Writes to F_p, (offset, bytes), that land in any order and complete as one."""


class Handle(NamedTuple):
    """Names one request for as long as its client lives."""

    epoch: int
    slot: int
    gen: int


class TokenLogprob(NamedTuple):
    """Natural log probabilities at one generated token; ``top`` holds (token id, log probability), best first."""

    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True)
class Update:
    """News of one request since the last poll.

    ``logprobs`` has one entry per token, or is None where none were asked for. The last update of a request, and only
    that one, has ``reason`` or ``error``; ``error`` says why the request died without an answer from the scheduler.
    ``times`` come with ``reason``, and are the scheduler's own; None where the read caught them half written.
    """

    handle: Handle
    tokens: list[int]
    logprobs: list[TokenLogprob] | None
    state: State
    reason: Reason | None = None
    error: str | None = None
    times: Times | None = None

    def merge(self, later: Update) -> None:
        """Take in the news that followed these of the same request."""
        self.tokens += later.tokens
        if self.logprobs is not None and later.logprobs is not None:
            self.logprobs += later.logprobs
        self.state, self.reason, self.error, self.times = later.state, later.reason, later.error, later.times


@dataclass(slots=True)
class Fetch:
    """Tokens ``[first, first + count)`` on their way from the output arena."""

    first: int
    count: int
    tokens: list[int] | None = None
    records: Bytes | None = None


class Life(enum.Enum):
    """What an occupied slot is to this client. It only moves down this list."""

    WANTED = enum.auto()
    """Its user waits for the answer."""
    CANCELLED = enum.auto()
    """It is to end, and its user waits for that."""
    LOST = enum.auto()
    """Nobody waits for it, and the scheduler has not ended it."""
    FINISHED = enum.auto()
    """The scheduler has ended it; completions of its tickets may be outstanding."""


class Stream:
    """An occupied slot: its request, where it is in the ring, and how far it is.

    Only the methods here change it. Without a request it belongs to a frontend that is gone, and nobody waits for it.
    ``chain`` are the writes of its payload, record and commit.
    """

    __slots__ = (
        "_chain", "_fetch", "_have", "_in_ring", "_latest", "_life", "_state", "_tickets",
        "gen", "handle", "out_off", "prompt_off", "request", "seq", "slot",
    )  # fmt: skip

    def __init__(
        self, slot: int, gen: int, seq: int, *, handle: Handle | None = None, request: SubmitRequest | None = None,
        prompt_off: int = -1, out_off: int = -1, chain: Chain = (),
    ) -> None:  # fmt: skip
        self.slot, self.gen, self.seq = slot, gen, seq
        self.handle, self.request = handle, request
        self.prompt_off, self.out_off = prompt_off, out_off
        self._chain = chain
        self._life = Life.LOST if request is None else Life.WANTED
        self._state = State.PREFILL_PENDING
        self._in_ring = False
        self._have = self._tickets = 0
        self._fetch: Fetch | None = None
        self._latest = (0, 0, 0)

    @property
    def life(self) -> Life:
        """What it is to this client."""
        return self._life

    @property
    def awaited(self) -> bool:
        """Whether its user waits for news."""
        return self._life in (Life.WANTED, Life.CANCELLED)

    @property
    def unwanted(self) -> bool:
        """Whether the scheduler is to end it, and has not."""
        return self._life in (Life.CANCELLED, Life.LOST)

    @property
    def in_ring(self) -> bool:
        """Whether its chain has completed."""
        return self._in_ring

    @property
    def chain(self) -> Chain:
        """The writes of its chain; empty once that has completed."""
        return self._chain

    @property
    def tickets(self) -> int:
        """Work requests outstanding that touch its slot or extents."""
        return self._tickets

    @property
    def have(self) -> int:
        """Tokens delivered."""
        return self._have

    @property
    def state(self) -> State:
        """The last state that the scheduler published."""
        return self._state

    @property
    def latest(self) -> tuple[int, int, int]:
        """w0, w1 and w2 as last read."""
        return self._latest

    @property
    def fetch(self) -> Fetch | None:
        """The read of tokens that is outstanding."""
        return self._fetch

    def posted(self) -> None:
        """A work request that touches it was posted."""
        self._tickets += 1

    def landed(self) -> None:
        """One of its work requests has completed."""
        self._tickets -= 1

    def committed(self) -> None:
        """Its chain is complete in the ring."""
        self._in_ring, self._chain = True, ()

    def cut(self) -> None:
        """The link was lost, and with it all its work requests."""
        self._tickets, self._fetch = 0, None

    def saw(self, w0: int, w1: int, w2: int) -> None:
        """Its status was read."""
        self._latest = (w0, w1, w2)

    def enter(self, state: State) -> bool:
        """The scheduler published ``state``; whether that is news."""
        news = state is not self._state
        self._state = state
        return news

    def begin_fetch(self, count: int) -> Fetch:
        """The next ``count`` tokens, and their logprobs if asked for, are being read."""
        assert self.request is not None
        self._fetch = Fetch(self._have, count)
        self._tickets += 1 + (self.request.logprobs is not None)
        return self._fetch

    def end_fetch(self) -> None:
        """The read is over, or does not count."""
        self._fetch = None

    def deliver(self, count: int) -> None:
        """``count`` more tokens were delivered, or dropped since nobody waits for them."""
        self._have += count

    def cancel(self) -> bool:
        """It is to end; whether that was not known before."""
        news = self._life is Life.WANTED
        if news:
            self._life = Life.CANCELLED
        return news

    def fail(self) -> None:
        """Nobody waits for it any more; the slot stays occupied until the scheduler has ended it."""
        if self._life is not Life.FINISHED:
            self._life = Life.LOST

    def end(self) -> None:
        """The scheduler has ended it."""
        self._life = Life.FINISHED


def parse_logprobs(data: Bytes, count: int, lp_n: int, vocab: int) -> list[TokenLogprob]:
    """Unpack ``count`` packed records, u8, shape [count * logprob_stride(lp_n)].

    Raises ValueError where a record does not keep to the layout.
    """
    words = data.view(np.uint32).reshape(count, logprob_stride(lp_n) // 4)
    floats = data.view(np.float32).reshape(words.shape)
    ids, values = words[:, 2 : 2 + lp_n], floats[:, 2 + lp_n :]
    if lp_n > LOGPROBS_MAX or (words[:, 1] > lp_n).any():
        raise ValueError("a logprob record has more alternatives than were asked for")
    used = np.arange(lp_n) < words[:, 1:2]
    if (ids[used] >= vocab).any() or np.isnan(floats[:, 0]).any() or np.isnan(values[used]).any():
        raise ValueError("a logprob record holds no token id or no number")
    rows = zip(floats[:, 0].tolist(), words[:, 1].tolist(), ids.tolist(), values.tolist(), strict=True)
    return [TokenLogprob(chosen, list(zip(i[:n], v[:n], strict=True))) for chosen, n, i, v in rows]


class Outbox:
    """Updates that the current poll will return, one per request."""

    def __init__(self) -> None:
        self._updates: dict[Stream, Update] = {}

    def news(self, stream: Stream) -> Update | None:
        """The update of ``stream``, to be filled in; None where nobody waits for it."""
        if stream.handle is None or not stream.awaited:
            return None
        update = self._updates.get(stream)
        if update is None:
            assert stream.request is not None
            logprobs: list[TokenLogprob] | None = None if stream.request.logprobs is None else []
            update = self._updates[stream] = Update(stream.handle, [], logprobs, stream.state)
        update.state = stream.state
        return update

    def fail(self, stream: Stream, error: str) -> None:
        """End ``stream`` for its user with ``error``."""
        update = self.news(stream)
        if update is not None:
            update.error = error
        stream.fail()

    def take(self) -> list[Update]:
        """Hand the collected updates over."""
        updates = list(self._updates.values())
        self._updates.clear()
        return updates
