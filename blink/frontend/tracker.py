"""The request tracker: the life of every request, from its submission to the ring until its last update."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from blink.frontend.errors import ApiError, from_ring_check, overloaded, unavailable
from blink.frontend.finish import FINISH
from blink.frontend.job import LATENCIES, Job, Track
from blink.frontend.metrics import Metrics
from blink.ring.client import RingClient, RingFull, RingUnavailable
from blink.ring.request import SubmitRequest
from blink.ring.stream import Handle, Update

HOPS = ("link", "scheduler", "frontend")


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
        job = Job(self.drop)
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
        if update.reason in FINISH:
            self._metrics.e2e.observe(time.monotonic() - track.submitted)
        self._gauges()

    def _gauges(self) -> None:
        self._metrics.waiting.set(self.urgent)
        self._metrics.running.set(len(self._tracks) - self.urgent)


def hop_of(cause: str) -> tuple[str, str]:
    """Split "hop: what is wrong", as the ring client words it; an epoch or a link that ended says only what is."""
    hop, colon, what = cause.partition(": ")
    return (hop, what) if colon and hop in HOPS else ("link", cause)
