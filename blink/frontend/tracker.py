"""The request tracker: the life of every request, from its submission to the ring until its last update."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from blink.frontend.errors import ApiError, ClientGone, from_ring_check, overloaded, unavailable
from blink.frontend.metrics import Metrics
from blink.ring.client import RingClient, RingFull, RingUnavailable
from blink.ring.layout import Reason
from blink.ring.request import SubmitRequest
from blink.ring.stream import Handle, Update
from blink.ring.words import Times


@dataclass(slots=True, eq=False)
class Track:
    """One ring request. Times are monotonic seconds; ``outcome`` is what the metrics will call its end."""

    handle: Handle
    job: Job
    index: int
    submitted: float
    first: float | None = None
    last: float = 0.0
    tokens: int = 0
    outcome: str | None = None
    times: Times | None = None  # the scheduler's, once it has ended the request

    @property
    def ttft(self) -> float | None:
        """Seconds from submission until the first token was read; None before."""
        return None if self.first is None else self.first - self.submitted

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first, as they were read; None where there is none."""
        return None if self.first is None else self._each(self.last - self.first)

    @property
    def scheduler_ttft(self) -> float | None:
        """Seconds by the scheduler's clock from its first sight of the request to its first token."""
        return None if self.times is None or not self.tokens else self.times.first_us / 1e6

    @property
    def scheduler_tpot(self) -> float | None:
        """Mean seconds per token after the first, by the scheduler's clock."""
        return None if self.times is None else self._each((self.times.last_us - self.times.first_us) / 1e6)

    def _each(self, seconds: float) -> float | None:
        return seconds / (self.tokens - 1) if self.tokens > 1 else None


LATENCIES = ("ttft", "tpot", "scheduler_ttft", "scheduler_tpot")


def latencies_ms(tracks: Sequence[Track]) -> dict[str, float]:
    """What is known of LATENCIES, each in ms with ``_ms`` behind its name; of several answers the longest."""
    known = {name: [t for track in tracks if (t := getattr(track, name)) is not None] for name in LATENCIES}
    return {f"{name}_ms": round(1000 * max(times), 3) for name, times in known.items() if times}


class Job:
    """The ring requests of one HTTP request, one per answer, and their news until somebody takes them.

    News of an answer that wait are merged, so a client that reads slowly costs no more than its text.
    """

    def __init__(self, tracker: RequestTracker) -> None:
        self._tracker = tracker
        self._updates: dict[int, Update] = {}  # by answer
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._limit: asyncio.TimerHandle | None = None
        self.tracks: list[Track] = []
        self.gone = False

    def put(self, index: int, update: Update) -> None:
        """Hand over news of answer ``index``."""
        waiting = self._updates.get(index)
        if waiting is None:
            self._updates[index] = update
        else:
            waiting.merge(update)
        self._wake()

    def fail(self, error: Exception) -> None:
        """End the job for its reader, after the news that came before; the first failure counts."""
        self._failure = self._failure or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def limit(self, timeout_s: float) -> None:
        """Fail the job if it is not closed within ``timeout_s``."""
        error = ApiError(504, f"scheduler: waited {timeout_s:.0f} s for the answer", code="timeout")
        self._limit = asyncio.get_running_loop().call_later(timeout_s, self.fail, error)

    async def news(self) -> dict[int, Update]:
        """What came since the last call, by answer, at least one. Raises what the job failed with."""
        while not self._updates:
            if self._failure is not None:
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        updates, self._updates = self._updates, {}
        return updates

    def finish(self, index: int, outcome: str) -> None:
        """Answer ``index`` is complete for its reader; what the ring still does for it is cancelled."""
        self._tracker.drop(self.tracks[index], outcome)

    def hang_up(self) -> None:
        """The client is gone: cancel everything, and wake whoever waits in :meth:`news`."""
        self.gone = True
        self.close("abandoned")
        self.fail(ClientGone())

    def close(self, outcome: str) -> None:
        """End of the job, however it came about. Idempotent; answers that are complete stay so."""
        if self._limit is not None:
            self._limit.cancel()
        for track in self.tracks:
            self._tracker.drop(track, outcome)


class RequestTracker:
    """All requests of this worker. ``urgent`` counts those without a first token."""

    def __init__(self, client: RingClient, metrics: Metrics) -> None:
        self._client, self._metrics = client, metrics
        self._tracks: dict[Handle, Track] = {}
        self.urgent = 0
        self.wake = asyncio.Event()  # set where the poller has something to do at once

    def __len__(self) -> int:
        return len(self._tracks)

    def submit(self, requests: Sequence[SubmitRequest]) -> Job:
        """Submit all of ``requests`` or none. Raises ApiError: 429 where the ring is full, 503 where it is down."""
        job = Job(self)
        try:
            for index, request in enumerate(requests):
                handle = self._client.submit(request)
                track = Track(handle, job, index, time.monotonic())
                self._tracks[handle] = track
                job.tracks.append(track)
                self.urgent += 1
                self._metrics.prompt_tokens.inc(len(request.prompt))
        except BaseException as e:
            job.close("refused")
            if isinstance(e, RingFull):
                raise overloaded(f"too many requests: {e.cause}") from None
            if isinstance(e, RingUnavailable):
                raise unavailable(*hop_of(e.cause)) from None
            if isinstance(e, ValueError):
                raise from_ring_check(e) from None
            raise
        finally:
            self._gauges()
            self.wake.set()
        return job

    def dispatch(self, updates: Sequence[Update]) -> None:
        """Note and hand over what one poll of the ring says about requests: first to those that wait for their first
        token, since every hand-over delays those behind it."""
        now, tokens = time.monotonic(), 0
        for update in sorted(updates, key=self._has_begun) if self.urgent else updates:
            track = self._tracks.get(update.handle)
            if track is None:
                continue
            if update.tokens:
                tokens += len(update.tokens)
                track.tokens += len(update.tokens)
                track.last = now
                if track.first is None:
                    self._first_token(track)
            if track.outcome is None:
                if update.error is not None:
                    track.job.fail(unavailable(*hop_of(update.error)))
                else:
                    track.job.put(track.index, update)
            if update.reason is not None or update.error is not None:
                self._end(track, update)
        if tokens:
            self._metrics.output_tokens.inc(tokens)

    def _has_begun(self, update: Update) -> bool:
        track = self._tracks.get(update.handle)
        return track is None or track.first is not None

    def _first_token(self, track: Track) -> None:
        track.first = track.last
        self.urgent -= 1
        self._metrics.latency["ttft"].observe(track.first - track.submitted)
        self._gauges()

    def drop(self, track: Track, outcome: str) -> None:
        """Nobody waits for ``track`` any more; cancel it in the ring unless it ended. Idempotent."""
        if track.outcome is None:
            track.outcome = outcome
            self._metrics.finished(outcome)
        if track.handle in self._tracks:
            self._client.cancel(track.handle)
            self.wake.set()

    def fail_all(self, error: ApiError) -> None:
        """End every job with ``error`` and cancel its requests."""
        for job in {track.job: None for track in self._tracks.values() if track.outcome is None}:
            job.fail(error)
            job.close("error")

    def _end(self, track: Track, update: Update) -> None:
        del self._tracks[track.handle]
        track.times = update.times
        if track.first is None:
            self.urgent -= 1
        for name in LATENCIES[1:]:  # the first is observed when it comes
            if (seconds := getattr(track, name)) is not None:
                self._metrics.latency[name].observe(seconds)
        if update.reason in (Reason.EOS, Reason.STOP_ID, Reason.LENGTH):
            self._metrics.e2e.observe(time.monotonic() - track.submitted)
        self._gauges()

    def _gauges(self) -> None:
        self._metrics.waiting.set(self.urgent)
        self._metrics.running.set(len(self._tracks) - self.urgent)


def hop_of(cause: str) -> tuple[str, str]:
    """Split "hop: what is wrong", as the ring client words it; an epoch or a link that ended says only what is."""
    hop, colon, what = cause.partition(": ")
    return (hop, what) if colon and hop in HOPS else ("link", cause)


HOPS = ("link", "scheduler", "frontend")
