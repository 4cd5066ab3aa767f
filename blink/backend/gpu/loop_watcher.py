"""All that the host does while a scheduler runs on the device: wait to be told to stop, and watch for failures."""

from __future__ import annotations

import os
import select
import time

from blink.backend.gpu.loop import GpuLoop
from blink.backend.shutdown import Stops
from blink.engine.seam.batch import Control

WATCH_S = 1.0
"""Between two looks at whether the device still runs the loop. Serving does not depend on them."""
STOPPING_WATCH_S = 0.01
END_S = 10.0
"""How long the loop may take to end once everything was told to."""


class LoopWatcher:
    """Starts ``loop`` and waits for its end, as :class:`blink.backend.host_loop.HostLoop` turns one on a CPU thread."""

    def __init__(self, loop: GpuLoop, *, drain_timeout_s: float) -> None:
        self._loop = loop
        self._stops = Stops(self._request, drain_timeout_s)
        self._last_word = float("inf")  # when everything was told to end
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def stop(self) -> None:
        """Ask for the end; see :class:`Stops`. A signal handler may call it at any point of :meth:`run`."""
        self._stops.ask()
        os.write(self._wake_write, b"\0")

    def _request(self, control: Control) -> None:
        if control is Control.STOP:
            self._last_word = time.monotonic()
        self._loop.scheduler.request(control)

    def run(self) -> None:
        """Start the loop and wait for its end. Raises BlinkError where the device fails, or does not stop."""
        self._loop.start()
        pause = WATCH_S
        while not self._loop.ended():
            self._stops.keep()
            if time.monotonic() - self._last_word > END_S:
                self._loop.join(0)
            if select.select([self._wake_read], [], [], pause)[0]:
                os.read(self._wake_read, 64)
                pause = STOPPING_WATCH_S

    def close(self) -> None:
        """Release what :meth:`stop` writes to; it must not be called any more."""
        os.close(self._wake_read)
        os.close(self._wake_write)
