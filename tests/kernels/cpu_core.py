"""The scheduler core on a CPU, with what only tests ask of it: many threads, and generations that begin anywhere."""

from __future__ import annotations

import ctypes
from typing import Any

from blink import core
from blink.backend.scheduler.host import Scheduler


class CpuCore(Scheduler):
    """As :class:`Scheduler`; ``threads`` run the core together, as a GPU's block does, started anew for every call."""

    def __init__(self, *arguments: Any, threads: int = 1) -> None:
        super().__init__(*arguments)
        self.threads = threads

    def set_generation(self, slot: int, gen: int) -> None:
        """Make ``gen`` the generation that ``slot`` claimed last."""
        function = core.library().blink_sched_set_gen
        function.restype, function.argtypes = None, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]
        function(self.state, slot, gen)
