"""The loop that turns scheduler and engine on one CPU thread: step, run what the step decided, step again."""

from __future__ import annotations

import logging
import time

from blink.backend.notify import notify
from blink.backend.scheduler import Scheduler
from blink.engine.batch import Control, Kind
from blink.engine.engine import Engine

log = logging.getLogger("blink.backend")

SPIN_S = 0.0005
"""How long an idle driver polls without sleeping: the gap between a client's answer and its next request."""
IDLE_SLEEP_S = 0.001
"""Sleep between two polls of an idle driver; also the time between two beats."""


class Driver:
    """Drives ``scheduler`` and ``engine`` until a stop.

    The first :meth:`stop` drains: what runs ends, what waits is refused, and after ``drain_timeout_s`` the rest ends
    with an error. The second stops at once, which still publishes an end for every request.
    """

    def __init__(self, scheduler: Scheduler, engine: Engine, *, drain_timeout_s: float) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._drain_timeout_s = drain_timeout_s
        self._stops = 0
        self._answered = 0
        self._deadline = float("inf")

    def stop(self) -> None:
        """Ask for the end. Only counts, so that a signal handler may call it at any point of :meth:`run`."""
        self._stops += 1

    def run(self) -> None:
        """Drive until the scheduler says STOP."""
        idle_since: float | None = None
        while True:
            now = time.monotonic()
            if self._answered < min(self._stops, 2) or now >= self._deadline:
                self._answer_stop(now)
            kind = self._scheduler.step().kind
            if kind in (Kind.PREFILL, Kind.DECODE):
                self._engine.run()
                idle_since = None
            elif kind == Kind.STOP:
                return
            elif kind == Kind.IDLE:
                idle_since = now if idle_since is None else idle_since
                if now - idle_since > SPIN_S:
                    time.sleep(IDLE_SLEEP_S)

    def _answer_stop(self, now: float) -> None:
        if self._stops == 1 and self._answered == 0:
            self._answered, self._deadline = 1, now + self._drain_timeout_s
            log.info(
                "stopping: running requests have %g s to end; a second signal ends them now", self._drain_timeout_s
            )
            notify(STOPPING="1", STATUS="draining")
            self._scheduler.request(Control.DRAIN)
            return
        why = "asked twice" if self._stops > 1 else f"requests still ran {self._drain_timeout_s:g} s after the signal"
        log.warning("ending what runs: %s", why)
        self._answered, self._deadline = 2, float("inf")
        self._scheduler.request(Control.STOP)
