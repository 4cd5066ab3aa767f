"""How a backend that was asked to stop ends: drain first, then end what is left."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from blink.engine.seam.batch import Control
from blink.notify import notify

log = logging.getLogger("blink.backend")


class Stops:
    """Turns requests to stop into the scheduler's control word, through ``request``.

    The first drains: what runs ends, what waits is refused, and after ``drain_timeout_s`` the rest ends with an error.
    The second stops at once, which still publishes an end for every request.
    """

    def __init__(self, request: Callable[[Control], None], drain_timeout_s: float) -> None:
        self._request = request
        self._drain_timeout_s = drain_timeout_s
        self._asked = 0
        self._answered = 0
        self._deadline = float("inf")

    def ask(self) -> None:
        """Ask for the end. Only counts, so that a signal handler may call it at any point."""
        self._asked += 1

    def keep(self) -> None:
        """Answer what was asked, and what has taken too long. Whoever drives calls it regularly."""
        now = time.monotonic()
        if self._answered >= min(self._asked, 2) and now < self._deadline:
            return
        if self._asked == 1 and self._answered == 0:
            self._answered, self._deadline = 1, now + self._drain_timeout_s
            log.info(
                "stopping: running requests have %g s to end; a second signal ends them now", self._drain_timeout_s
            )
            notify(STOPPING="1", STATUS="draining")
            self._request(Control.DRAIN)
            return
        why = "asked twice" if self._asked > 1 else f"requests still ran {self._drain_timeout_s:g} s after the signal"
        log.warning("ending what runs: %s", why)
        self._answered, self._deadline = 2, float("inf")
        self._request(Control.STOP)


class Stoppable(Protocol):
    """What a signal ends: a driver."""

    def stop(self) -> None:
        """Ask for the end; a signal handler calls it."""


class StopSignals:
    """SIGTERM and SIGINT: end the process while it loads, stop the driver once there is one."""

    def __init__(self) -> None:
        self._driver: Stoppable | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def reach(self, driver: Stoppable) -> None:
        """From now on signals go to ``driver``."""
        self._driver = driver

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._driver is None:
            raise SystemExit(0)
        self._driver.stop()
