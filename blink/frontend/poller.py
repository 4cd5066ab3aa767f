"""The one task of a worker that polls the ring."""

from __future__ import annotations

import asyncio
import logging
import time

from blink.frontend.errors import unavailable
from blink.frontend.tracker import RequestTracker
from blink.ring.client import RingClient

# The local profile shares its cores with the model, so the poller sleeps as long as it may.
FLOOR_S = 0.001  # uvloop's timers count whole milliseconds
BUSY_S = 0.008  # longest pause while tokens are expected
IDLE_S = 0.25  # pause without requests: a look at the heartbeat, and our own beat
BACK_OFF = 1.5

log = logging.getLogger("blink.frontend")


class Pace:
    """How long to pause between two polls.

    It is shortest after news, since lanes of one step finish together, and while a request waits for its first token,
    since that is what its user waits for. It grows from there, so that a slow model has its cores to itself, up to a
    ceiling that bounds how late a token is seen.
    """

    def __init__(self) -> None:
        self._pause = FLOOR_S

    def next(self, *, news: bool, urgent: int, outstanding: int) -> float:
        """Seconds to pause after a poll that brought ``news`` or none."""
        if not outstanding:
            self._pause = FLOOR_S
            return IDLE_S
        self._pause = FLOOR_S if news or urgent else min(self._pause * BACK_OFF, BUSY_S)
        return self._pause


class RingPoller:
    """Polls ``client`` and hands its updates to ``tracker`` until cancelled.

    One cycle is one bounded poll; text is made of tokens by the requests' own tasks. Streams fail once the scheduler
    has stood for ``stall_timeout_s``.
    """

    def __init__(self, client: RingClient, tracker: RequestTracker, *, stall_timeout_s: float) -> None:
        self._client, self._tracker, self._stall_timeout_s = client, tracker, stall_timeout_s
        self._down: str | None = None

    async def run(self) -> None:
        """The loop."""
        pace = Pace()
        while True:
            self._tracker.wake.clear()
            updates = self._client.poll(time.monotonic())
            self._tracker.dispatch(updates)
            self._watch()
            outstanding = len(self._tracker)
            await self._pause(pace.next(news=bool(updates), urgent=self._tracker.urgent, outstanding=outstanding))

    async def _pause(self, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._tracker.wake.set)
        await self._tracker.wake.wait()
        timer.cancel()

    def _watch(self) -> None:
        health = self._client.health()
        if health.down != self._down:
            self._down = health.down
            log.warning("backend is down: %s", health.down) if health.down else log.info("backend is up")
        if health.stalled and len(self._tracker) and (health.beat_age_s or 0) > self._stall_timeout_s:
            self._tracker.fail_all(unavailable("scheduler", f"no beat for {health.beat_age_s:.0f} s"))
