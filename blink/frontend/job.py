"""The ring requests of one HTTP request: what is known of each, and their news until somebody takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blink.frontend.errors import ApiError, ClientGone
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

    News of an answer that wait are merged, so a client that reads slowly costs no more than its text. ``drop(track,
    outcome)`` is told of every request for which nobody waits any more.
    """

    def __init__(self, drop: Callable[[Track, str], None]) -> None:
        self._drop = drop
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
        self._drop(self.tracks[index], outcome)

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
            self._drop(track, outcome)
