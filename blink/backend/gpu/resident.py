"""The scheduler resident on the device: its memory, the loop that turns it, and the host that waits."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from typing import ClassVar

from blink.backend.gpu.assembly import Assembly
from blink.backend.gpu.driver import GpuDriver, graph_bytes
from blink.backend.gpu.loop import GpuLoop
from blink.backend.gpu.loop_watcher import LoopWatcher
from blink.backend.gpu.ring import RINGS, RingForDevice
from blink.backend.gpu.state import DeviceScheduler
from blink.backend.scheduler.binding import state_size
from blink.backend.scheduler.config import SchedulerConfig
from blink.backend.setup import Setup
from blink.gpu.cuda import Device

log = logging.getLogger("blink.backend")


class ResidentDriver(GpuDriver[RingForDevice]):
    """``scheduler`` and ``loop`` on the device. Without :meth:`run` the loop may be started and joined by itself.

    ``idle`` is :class:`blink.backend.gpu.loop.GpuLoop`'s.
    """

    loop_type: ClassVar[type[GpuLoop]]

    def __init__(
        self, assembly: Assembly, scheduling: SchedulerConfig, ring: RingForDevice, *, drain_timeout_s: float,
        **idle: float,
    ) -> None:  # fmt: skip
        self._opened = ExitStack()
        try:
            scheduling = replace(scheduling, launch_window=self.loop_type.launch_window)
            self.scheduler = DeviceScheduler(assembly.device, scheduling, ring, assembly.buffers)
            self._opened.callback(self.scheduler.close)
            self.loop = self.loop_type(self.scheduler, assembly.graphs, **idle)
            self._opened.callback(self.loop.close)
            self._watcher = LoopWatcher(self.loop, drain_timeout_s=drain_timeout_s)
            self._opened.callback(self._watcher.close)
        except BaseException:
            self.close()
            raise
        log.info(
            "%d graphs are executable after %.2f s, in %d MiB", len(assembly.graphs.graphs), self.loop.build_s,
            self.loop.graph_bytes >> 20,
        )  # fmt: skip

    @classmethod
    def needs(cls, setup: Setup) -> dict[str, int]:
        """See :meth:`GpuDriver.needs`."""
        config, geometry = setup.config, setup.config.ring.geometry()
        scheduler = {"scheduler": state_size(setup.scheduling.pack(), geometry)}
        ring = RINGS[config.ring.transport].needs(geometry)
        return scheduler | ring | {"graphs": graph_bytes(setup.scheduling, cls.loop_type.copies)}

    @classmethod
    def open_ring(cls, device: Device, setup: Setup) -> RingForDevice:
        """See :meth:`GpuDriver.open_ring`."""
        return RINGS[setup.config.ring.transport].open(device, setup)

    def run(self) -> None:
        """See :meth:`GpuDriver.run`."""
        self._watcher.run()
        log.info("the scheduler's counters: %s", {k: v for k, v in self.scheduler.counters().items() if v})

    def stop(self) -> None:
        """See :meth:`GpuDriver.stop`."""
        self._watcher.stop()

    def close(self) -> None:
        """See :meth:`GpuDriver.close`. The loop must have ended."""
        self._opened.close()
