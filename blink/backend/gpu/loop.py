"""What the drivers on the device share: one launch, then the device runs by itself until the scheduler says STOP."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from blink.backend.gpu.loop_layout import LOOP
from blink.backend.gpu.state import DeviceScheduler
from blink.engine.device.captured import Graphs
from blink.errors import BlinkError
from blink.gpu.cuda import call, describe
from blink.gpu.graphs import Exec, destroy_exec
from blink.gpu.memory import DeviceMemory

IDLE_SPIN_US = 1000
"""How long an idle driver polls without sleeping: the gap between a client's answer and its next request."""
IDLE_SLEEP_US = 20
"""Sleep between two polls after that. docs/performance.md has what it costs in power and in latency."""
_JOIN_POLL_S = 0.002


class GpuLoop(ABC):
    """Turns ``scheduler`` and runs its batches from ``graphs``, all on the device.

    Everything is allocated, loaded and uploaded when it is made. A loop may be started again after its end.
    """

    launch_window = 0
    """Graph launches per execution, for the scheduler's configuration; 0: there is no limit."""
    copies = 1
    """Executable copies of each graph."""

    def __init__(
        self, scheduler: DeviceScheduler, graphs: Graphs, *, idle_spin_us: float = IDLE_SPIN_US,
        idle_sleep_us: float = IDLE_SLEEP_US,
    ) -> None:  # fmt: skip
        if scheduler.config.launch_window != self.launch_window:
            raise ValueError(f"launch_window: {scheduler.config.launch_window} is not {self.launch_window}")
        self.device, self.scheduler = scheduler.device, scheduler
        self.state = DeviceMemory(self.device, LOOP.size, "the driver")
        settings = np.zeros(1, LOOP.dtype())
        settings["idle_spin_ns"], settings["idle_sleep_ns"] = int(1000 * idle_spin_us), int(1000 * idle_sleep_us)
        self.state.write(0, settings.tobytes())
        self._stream = self.device.new_stream()
        self._execs: list[Exec] = []
        before, started = self.device.free_memory(), time.monotonic()
        self._exec = self._build(graphs)
        self.build_s = time.monotonic() - started
        """Seconds that instantiating and uploading took."""
        self.graph_bytes = max(0, before - self.device.free_memory())
        """Device memory that the executable graphs took, all together, as far as CUDA tells."""
        self.launch_s = 0.0
        """Seconds that the last launch kept the host."""

    @abstractmethod
    def _build(self, graphs: Graphs) -> Exec:
        """What :meth:`start` launches. Execs to release at the end go to ``_execs``."""

    def start(self) -> None:
        """Launch the loop. Returns at once; nothing on the host is needed from here on."""
        started = time.perf_counter()
        call(cu.cuGraphLaunch(self._exec, self._stream), "launching the scheduler")
        self.launch_s = time.perf_counter() - started

    def ended(self) -> bool:
        """Whether the device has left the loop. Raises BlinkError where the device failed."""
        (error,) = cu.cuStreamQuery(self._stream)
        if error == cu.CUresult.CUDA_ERROR_NOT_READY:
            return False
        if error != cu.CUresult.CUDA_SUCCESS:
            raise BlinkError(f"the scheduler's loop failed on the device: {describe(error)}", "restart the backend")
        return True

    def join(self, timeout_s: float) -> None:
        """Wait until the loop has ended. Raises BlinkError after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while not self.ended():
            if time.monotonic() > deadline:
                raise BlinkError(
                    f"waited {timeout_s:g} s for the scheduler on the device to stop: {self.report()}",
                    "a batch hangs; end the process, which resets its work on the device",
                )
            time.sleep(_JOIN_POLL_S)

    def report(self) -> dict[str, int]:
        """The driver's counts, and the CUDA error of its last failed graph launch; see :data:`LOOP`."""
        record: Any = self.state.read(0, LOOP.size).view(LOOP.dtype())[0]
        return {name: int(record[name]) for name in ("turns", "executions", "failed", "error")}

    def close(self) -> None:
        """Release the graphs. The loop must have ended."""
        for made in (*self._execs, self._exec):
            destroy_exec(made)
        self._execs = []
        self.state.free()
