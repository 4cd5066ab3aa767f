"""Everything on a device but the ring and the driver: step buffers, engine, graphs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack

from blink.backend.gpu.engines import load_engine, memory_plan
from blink.backend.scheduler.config import SchedulerConfig
from blink.backend.setup import Setup
from blink.engine.device.buffers import DeviceBuffers
from blink.engine.device.captured import CapturedEngine, capture_all
from blink.engine.device.hosted import HostedEngine
from blink.gpu.cuda import Device
from blink.gpu.devices import ordinal_of

log = logging.getLogger("blink.backend")


def open_device(setup: Setup) -> Device:
    """The device that the configuration names. Raises BlinkError; see :func:`blink.gpu.devices.ordinal_of`."""
    engine = setup.config.engine
    return Device(ordinal_of(engine.device), engine.cache_dir)


def require_free(device: Device, setup: Setup) -> None:
    """Raise BlinkError, before anything is allocated, where the device's free memory does not hold it all."""
    plan = memory_plan(setup)
    log.info("memory of the GPU %s: %s", device.name, plan)
    plan.require(device.free_memory(), f" on the GPU {device.name}")


def assemble(device: Device, setup: Setup) -> Assembly:
    """The assembly that the configuration names. Raises BlinkError."""
    return Assembly(device, setup.scheduling, lambda device, buffers: load_engine(device, setup, buffers))


class Assembly:
    """``buffers``, the ``engine`` that ``load`` makes over them, its ``graphs``, and ``hosted``, which runs them from
    the host. Raises BlinkError."""

    def __init__(
        self, device: Device, scheduling: SchedulerConfig, load: Callable[[Device, DeviceBuffers], CapturedEngine]
    ) -> None:
        self.device, self._opened = device, ExitStack()
        started = time.monotonic()
        try:
            self.buffers = DeviceBuffers(device, scheduling.dims)
            self._opened.callback(self.buffers.close)
            self.engine = load(device, self.buffers)
            self._opened.callback(self.engine.close)
            log.info("loaded the model in %.1f s", time.monotonic() - started)
            started = time.monotonic()
            self.graphs = capture_all(device, self.engine, *scheduling.buckets)
            self._opened.callback(self.graphs.close)
            took = sum(self.graphs.capture_s)
            log.info("chose algorithms in %.1f s", time.monotonic() - started - took)
            log.info("captured %d graphs in %.2f s", len(self.graphs.graphs), took)
            self.hosted = HostedEngine(device, self.graphs, self.buffers)
            self._opened.callback(self.hosted.close)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the device's memory back. Nothing may run on it."""
        self._opened.close()
