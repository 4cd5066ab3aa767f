"""The loop that turns scheduler and engine on one CPU thread: step, run what the step decided, step again."""

from __future__ import annotations

import time

from blink.backend.scheduler.host import Scheduler
from blink.backend.shutdown import Stops
from blink.engine.seam.batch import Kind
from blink.engine.seam.engine import Engine

SPIN_S = 0.0005
"""How long an idle driver polls without sleeping: the gap between a client's answer and its next request."""
IDLE_SLEEP_S = 0.001
"""Sleep between two polls of an idle driver; also the time between two beats."""


class HostLoop:
    """Drives ``scheduler`` and ``engine`` until a stop."""

    def __init__(self, scheduler: Scheduler, engine: Engine, *, drain_timeout_s: float) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._stops = Stops(scheduler.request, drain_timeout_s)

    def stop(self) -> None:
        """Ask for the end; see :class:`Stops`. A signal handler may call it at any point of :meth:`run`."""
        self._stops.ask()

    def run(self) -> None:
        """Drive until the scheduler says STOP."""
        idle_since: float | None = None
        while True:
            now = time.monotonic()
            self._stops.keep()
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
