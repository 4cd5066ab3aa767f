"""The backend whose scheduler and engine are threads of this process."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import replace

from blink.backend.host_loop import HostLoop
from blink.backend.memory import MemoryPlan, available_memory
from blink.backend.readiness import budget_ms, serve_until_stopped
from blink.backend.scheduler.config import SchedulerConfig
from blink.backend.scheduler.host import Scheduler
from blink.backend.setup import Setup
from blink.backend.shutdown import StopSignals
from blink.engine.seam.buffers import BatchBuffers
from blink.engine.seam.engine import Engine
from blink.engine.seam.handmade_step import describe_step
from blink.errors import BlinkError
from blink.registry import engine_loader, engine_needs

WARM_UP_TOKENS = 64

log = logging.getLogger("blink.backend")


def check(setup: Setup) -> None:
    """Print what the configuration takes."""
    print(f"memory: {memory_plan(setup)}")


def serve(setup: Setup, stop: StopSignals) -> None:
    """Serve until ``stop``. Raises BlinkError where this machine cannot."""
    config, scheduling = setup.config, setup.scheduling
    plan = memory_plan(setup)
    log.info("memory: %s", plan)
    plan.require(available_memory())
    started = time.monotonic()
    # Made before the weights are loaded, so that a full tmpfs is told at once; published when all else works.
    with closing(setup.shared_ring()) as ring:
        buffers = BatchBuffers(scheduling.dims)
        with closing(load_engine(setup, buffers)) as engine:
            log.info("loaded %s in %.1f s", config.model.served_name, time.monotonic() - started)
            longest = _warm_up(engine, buffers, scheduling)
            scheduling = replace(scheduling, step_budget_ms=budget_ms(longest))
            scheduler = Scheduler(scheduling, ring.geometry, ring.g, ring.f, buffers)
            loop = HostLoop(scheduler, engine, drain_timeout_s=config.engine.drain_timeout_s)
            serve_until_stopped(config, ring, loop, stop, longest)


def load_engine(setup: Setup, buffers: BatchBuffers) -> Engine:
    """The engine that the configuration names over ``buffers``, its weights loaded. Raises BlinkError."""
    made: Engine = engine_loader(setup.config.engine.kind)(setup.model, setup.spec, setup.settings, buffers)
    return made


def memory_plan(setup: Setup) -> MemoryPlan:
    """What the configuration takes in memory: the engine, and the ring."""
    geometry = setup.config.ring.geometry()
    parts: dict[str, int] = engine_needs(setup.config.engine.kind)(setup.spec, setup.settings)
    return MemoryPlan(parts | {"ring": geometry.g_bytes + geometry.f_bytes})


def _warm_up(engine: Engine, buffers: BatchBuffers, scheduling: SchedulerConfig) -> float:
    """Run a step before anyone can ask, so that what is loaded lazily is loaded now.

    Returns the seconds that the largest step may take, in proportion to its tokens, which is rather too much than too
    little. Raises BlinkError where the engine has no answer.
    """
    tokens = min(WARM_UP_TOKENS, scheduling.batch_tokens, scheduling.max_context)
    lane_pages = min(scheduling.lane_pages, scheduling.pages)
    describe_step(buffers, [0], 0, tokens, lane_pages=lane_pages, page_tokens=scheduling.page_tokens)
    control, started = buffers.control[0], time.monotonic()
    engine.run()
    if control["done"] != control["step"] or control["error"] or not 0 <= buffers.out_token[0] < scheduling.vocab:
        raise BlinkError(
            "the engine could not run its first step",
            "check the checkpoint with `blink model check`, or prepare it again",
        )
    control["step"] = control["done"] = 0
    return (time.monotonic() - started) * scheduling.batch_tokens / tokens
