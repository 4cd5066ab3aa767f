"""What a client knows about one occupied slot, and what it tells its user about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from blink.ring.layout import LOGPROBS_MAX, Reason, State, logprob_stride
from blink.ring.request import SubmitRequest
from blink.ring.transport import Bytes
from blink.ring.words import Times


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


@dataclass(slots=True, eq=False)
class Stream:
    """An occupied slot.

    It is *live* while its user waits for it, *lost* when nobody does but the scheduler has not ended it, *finished*
    when it ended and only completions of its tickets are outstanding. Without ``request`` it belongs to a frontend
    that is gone. ``have`` counts delivered tokens; ``in_ring`` says that the commit chain has completed.
    """

    slot: int
    gen: int
    seq: int
    handle: Handle | None = None
    request: SubmitRequest | None = None
    prompt_off: int = -1
    out_off: int = -1
    have: int = 0
    state: State = State.PREFILL_PENDING
    in_ring: bool = False
    cancelled: bool = False
    lost: bool = False
    finished: bool = False
    tickets: int = 0
    fetch: Fetch | None = None
    latest: tuple[int, int, int] = (0, 0, 0)  # w0, w1 and w2 as last read
    chain: list[tuple[int, bytes]] = field(default_factory=list)  # until in_ring


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
        """The update of a live ``stream``, to be filled in; None where nobody waits for the stream."""
        if stream.handle is None or stream.lost or stream.finished:
            return None
        update = self._updates.get(stream)
        if update is None:
            assert stream.request is not None
            logprobs: list[TokenLogprob] | None = None if stream.request.logprobs is None else []
            update = self._updates[stream] = Update(stream.handle, [], logprobs, stream.state)
        update.state = stream.state
        return update

    def fail(self, stream: Stream, error: str) -> None:
        """End a live ``stream`` for its user; the slot stays occupied until the scheduler has ended it."""
        update = self.news(stream)
        if update is not None:
            update.error = error
        stream.lost = True

    def take(self) -> list[Update]:
        """Hand the collected updates over."""
        updates = list(self._updates.values())
        self._updates.clear()
        return updates
