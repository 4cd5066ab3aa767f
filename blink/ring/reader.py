"""The ring's reader: finds what changed in the status slab and delivers tokens in order, each once.

Whatever the scheduler wrote is checked before use: a count never exceeds what was asked for and never shrinks, reads
stay within the request's own extents, tokens lie within the vocabulary. A violation fails that request alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from blink.ring import words
from blink.ring.layout import STATUS, Reason, State, logprob_stride
from blink.ring.partition import Partition
from blink.ring.request import SubmitRequest
from blink.ring.stream import Fetch, Life, Outbox, Stream, TokenLogprob, parse_logprobs
from blink.ring.transport import Bytes, Channel, Region
from blink.ring.words import HINT_TOKEN_LIMIT, W0, W1
from blink.ring.work import WorkQueue

FETCH_TOKENS = 4096  # most tokens that one arena read asks for
SLOTS_PER_SLAB = 256  # most slots that one slab advances: bounds how long the worker's other work waits
_STATES = {int(s) for s in State} - {State.EMPTY, State.PREFILL_PENDING}
_REASONS = {int(r) for r in Reason} - {Reason.NONE}


class Reader:
    """Delivers the output of one partition's streams into an :class:`Outbox`.

    ``broken`` is called with each stream whose status cannot be true, before its user is told.
    """

    def __init__(self, partition: Partition, work: WorkQueue, outbox: Outbox, broken: Callable[[Stream], None]) -> None:
        self._partition, self._work, self._outbox, self._broken = partition, work, outbox, broken
        self._seen = np.zeros(partition.geometry.slots_per_part, np.uint64)
        self._next = 0  # slot from which a slab with too many changes is searched
        self._hints = partition.header.vocab <= HINT_TOKEN_LIMIT
        self.hinted = self.fetched = 0  # tokens that came from w1, and from the arena

    def forget(self) -> None:
        """Look at every occupied slot again at the next slab."""
        for stream in self._partition.streams.values():
            stream.end_fetch()
        self._seen.fill(0xFFFF_FFFF_FFFF_FFFF)

    def slab(self, status: npt.NDArray[np.uint64]) -> None:
        """Take in the status slab, u64, shape [n, 3]; only occupied slots whose w0 changed are looked at.

        Of more than SLOTS_PER_SLAB changes the rest waits for the next slab.
        """
        w0 = status[:, 0]
        changed = np.flatnonzero((w0 != self._seen) & self._partition.slots.busy)
        if not len(changed):
            return
        if len(changed) > SLOTS_PER_SLAB:
            changed = self._choose(changed)
        self._seen[changed] = w0[changed]
        for slot, (a, b, c) in zip(changed.tolist(), status[changed].tolist(), strict=True):
            stream = self._partition.streams[slot]
            if W0(a).gen == stream.gen & W0.gen.limit:
                stream.saw(a, b, c)
                self._advance(stream)

    def _choose(self, changed: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """SLOTS_PER_SLAB of ``changed``, shape [SLOTS_PER_SLAB]: first those that wait for their first token, then in
        turn, so that none is left behind for ever."""
        urgent = np.array([self._partition.streams[slot].have == 0 for slot in changed.tolist()])
        later = changed < self._next
        chosen = changed[np.lexsort((changed, later, ~urgent))][:SLOTS_PER_SLAB]
        self._next = int(chosen[-1]) + 1
        return chosen

    def _advance(self, stream: Stream) -> None:
        if stream.fetch is not None or stream.life is Life.FINISHED:
            return
        w0, request = W0(stream.latest[0]), stream.request
        state, reason, count = w0.state, w0.reason, w0.count
        if request is None or not stream.awaited:
            if state == State.DECODE_COMPLETED:
                self._finish(stream)
            return
        if state not in _STATES or (state == State.DECODE_COMPLETED and reason not in _REASONS):
            return self._fail(stream, f"state {state} and reason {reason}")
        if not stream.have <= count <= request.max_tokens:
            return self._fail(stream, f"{count} tokens after {stream.have}, of {request.max_tokens} at most")
        if stream.enter(State(state)):
            self._outbox.news(stream)
        if count > stream.have:
            tokens = self._from_hint(stream, request, count)
            if tokens is None:
                return self._fetch(stream, request, min(count - stream.have, FETCH_TOKENS))
            if max(tokens) >= self._partition.header.vocab:
                return self._fail(stream, "a token outside the vocabulary")
            self._deliver(stream, tokens)
            self.hinted += len(tokens)
        if state == State.DECODE_COMPLETED:
            update = self._outbox.news(stream)
            if update is not None:
                update.reason = Reason(reason)
                update.times = words.times_of(stream.latest[2], stream.gen)
            self._finish(stream)
        return None

    def _from_hint(self, stream: Stream, request: SubmitRequest, count: int) -> list[int] | None:
        new, w1 = count - stream.have, W1(stream.latest[1])
        if not self._hints or new > 2 or request.logprobs is not None:
            return None
        if w1.count != count & W1.count.limit or w1.gen != stream.gen & W1.gen.limit:
            return None
        return [w1.last] if new == 1 else [w1.prev, w1.last]

    def _fetch(self, stream: Stream, request: SubmitRequest, count: int) -> None:
        fetch = stream.begin_fetch(count)
        at = stream.out_off + 4 * fetch.first

        def tokens(data: Bytes) -> None:
            fetch.tokens = data.view(np.uint32).tolist()
            self._arrived(stream, request, fetch)

        self._work.read(Region.G, at, 4 * count, tokens, Channel.TOKENS)
        if request.logprobs is not None:
            stride = logprob_stride(request.logprobs)

            def records(data: Bytes) -> None:
                fetch.records = data.copy()
                self._arrived(stream, request, fetch)

            at = stream.out_off + request.records_at + fetch.first * stride
            self._work.read(Region.G, at, count * stride, records, Channel.TOKENS)

    def _arrived(self, stream: Stream, request: SubmitRequest, fetch: Fetch) -> None:
        stream.landed()
        if fetch.tokens is None or (request.logprobs is not None and fetch.records is None):
            return
        stream.end_fetch()
        if stream.awaited:
            try:
                self._take_in(stream, request, fetch, fetch.tokens)
            except ValueError as e:
                self._fail(stream, str(e))
        self._advance(stream)
        self._partition.settle(stream)

    def _take_in(self, stream: Stream, request: SubmitRequest, fetch: Fetch, tokens: list[int]) -> None:
        vocab = self._partition.header.vocab
        if max(tokens) >= vocab:
            raise ValueError("a token outside the vocabulary")
        records = []
        if fetch.records is not None and request.logprobs is not None:
            records = parse_logprobs(fetch.records, fetch.count, request.logprobs, vocab)
        self._deliver(stream, tokens, records)
        self.fetched += fetch.count

    def _deliver(self, stream: Stream, tokens: list[int], records: Sequence[TokenLogprob] = ()) -> None:
        update = self._outbox.news(stream)
        if update is not None:
            update.tokens += tokens
            if update.logprobs is not None:
                update.logprobs += records
        stream.deliver(len(tokens))

    def _fail(self, stream: Stream, what: str) -> None:
        self._broken(stream)
        self._outbox.fail(stream, f"the scheduler published {what}")
        self._advance(stream)

    def _finish(self, stream: Stream) -> None:
        stream.end()
        self._partition.settle(stream)


def status_words(data: Bytes, slots: int, offset: int) -> npt.NDArray[np.uint64]:
    """The status array within the bytes of G_p from its start, u64, shape [slots, 3]."""
    return data[offset : offset + slots * STATUS.size].view(np.uint64).reshape(slots, STATUS.size // 8)
