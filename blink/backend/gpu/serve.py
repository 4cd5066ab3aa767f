"""The backend whose engine runs on a GPU. The scheduler does too, unless the configuration wants it on a CPU thread."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Protocol

from blink.backend.gpu import prepare as graphs
from blink.backend.gpu.assembly import Assembly, open_device
from blink.backend.gpu.drivers import DRIVERS
from blink.backend.gpu.engines import memory_plan
from blink.backend.gpu.ring import DeviceRing, HostRing
from blink.backend.gpu.state import DeviceScheduler
from blink.backend.gpu.trial import longest_step_s
from blink.backend.gpu.watch import GpuDriver
from blink.backend.host_loop import Driver
from blink.backend.readiness import budget_ms, serving
from blink.backend.scheduler.config import SchedulerConfig
from blink.backend.scheduler.host import Scheduler
from blink.backend.setup import Setup
from blink.backend.shutdown import Stoppable, StopSignals
from blink.gpu.cuda import Device
from blink.ring.announce import Announcer, Kind
from blink.ring.shm import RingObjects

__all__ = ["check", "graphs", "serve"]

log = logging.getLogger("blink.backend")


class Runnable(Stoppable, Protocol):
    """A driver: runs until a stop."""

    def run(self) -> None:
        """Drive until the scheduler says STOP."""


def check(setup: Setup) -> None:
    """Print what the configuration takes. Raises BlinkError where this machine has no such GPU, or a smaller one."""
    plan = memory_plan(setup)
    decode, prefill = setup.scheduling.buckets
    print(f"memory of the GPU: {plan}")
    print(f"graphs: {len(decode)} for decode, {len(prefill)} for prefill")
    device = open_device(setup)
    # Of a whole GPU: what runs on it now may be the backend that this configuration is to replace.
    plan.require(device.total_memory(), f" on the GPU {device.name}")


def serve(setup: Setup, stop: StopSignals) -> None:
    """Serve until ``stop``. Raises BlinkError where this machine cannot."""
    config = setup.config
    device = open_device(setup)
    with _ring(device, setup) as ring, closing(Assembly(device, setup)) as assembly:
        graphs.verify(setup, assembly)
        longest = longest_step_s(assembly.hosted, setup.scheduling)
        assembly.hosted.reset()
        scheduling = replace(setup.scheduling, step_budget_ms=budget_ms(longest))
        with _driver(setup, scheduling, assembly, ring) as driver:
            stop.reach(driver)
            if isinstance(ring, RingObjects):
                ring.publish()
            serving(config.model.served_name, ring.epoch, longest)
            kind = Kind.FILE if isinstance(ring, RingObjects) else Kind.DMABUF
            announced = config.ring.transport == "verbs"
            with Announcer(config.instance.run_dir, ring, kind) if announced else nullcontext():
                driver.run()


@contextmanager
def _ring(device: Device, setup: Setup) -> Iterator[RingObjects | DeviceRing]:
    """The ring, where those who reach it can: in the GPU for a network card, else in shared memory."""
    if setup.config.ring.transport == "verbs" and setup.config.engine.driver != "host":
        device.require_ordered_rdma()
        with closing(DeviceRing(device, setup.header())) as ring:
            yield ring
        return
    with closing(setup.shared_ring()) as objects:
        yield objects


@contextmanager
def _driver(
    setup: Setup, scheduling: SchedulerConfig, assembly: Assembly, ring: RingObjects | DeviceRing
) -> Iterator[Runnable]:
    engine = setup.config.engine
    if engine.driver == "host":
        assert isinstance(ring, RingObjects)
        assembly.hosted.instantiate_all()
        scheduler = Scheduler(scheduling, ring.geometry, ring.g, ring.f, assembly.hosted.buffers)
        yield Driver(scheduler, assembly.hosted, drain_timeout_s=engine.drain_timeout_s)
        return
    loop_type = DRIVERS[engine.driver]
    scheduling = replace(scheduling, launch_window=loop_type.launch_window)
    with ExitStack() as opened:
        seen = ring if isinstance(ring, DeviceRing) else opened.enter_context(closing(HostRing(ring)))
        resident = opened.enter_context(closing(DeviceScheduler(assembly.device, scheduling, seen, assembly.buffers)))
        loop = opened.enter_context(closing(loop_type(resident, assembly.graphs)))
        driver = opened.enter_context(closing(GpuDriver(loop, drain_timeout_s=engine.drain_timeout_s)))
        log.info(
            "%d graphs are executable after %.2f s, in %d MiB", len(assembly.graphs.graphs), loop.build_s,
            loop.graph_bytes >> 20,
        )  # fmt: skip
        yield driver
        log.info("the scheduler's counters: %s", {k: v for k, v in resident.counters().items() if v})
