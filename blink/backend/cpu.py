"""The backend whose scheduler and engine are threads of this process."""

from __future__ import annotations

import logging
import time
from contextlib import closing, nullcontext
from dataclasses import replace

from blink.backend.host_loop import Driver
from blink.backend.memory import MemoryPlan, available_memory
from blink.backend.readiness import budget_ms, serving
from blink.backend.scheduler import Scheduler, SchedulerConfig
from blink.backend.setup import Setup
from blink.backend.shutdown import StopSignals
from blink.config import ApplianceConfig
from blink.engine import reference
from blink.engine.reference.engine import ReferenceEngine
from blink.engine.seam.buffers import BatchBuffers
from blink.engine.seam.engine import Engine, EngineSettings
from blink.engine.seam.handmade_step import describe_step
from blink.errors import BlinkError
from blink.model.prepared import PreparedModel
from blink.model.spec import ModelSpec
from blink.ring.announce import Announcer

WARM_UP_TOKENS = 64

log = logging.getLogger("blink.backend")


def check(setup: Setup) -> None:
    """Print what the configuration takes."""
    print(f"memory: {memory_plan(setup.config, setup.spec)}")


def serve(setup: Setup, stop: StopSignals) -> None:
    """Serve until ``stop``. Raises BlinkError where this machine cannot."""
    config, scheduling = setup.config, setup.scheduling
    plan = memory_plan(config, setup.spec)
    log.info("memory: %s", plan)
    plan.require(available_memory())
    name, started = config.model.served_name, time.monotonic()
    # Made before the weights are loaded, so that a full tmpfs is told at once; published when all else works.
    with closing(setup.shared_ring()) as ring:
        buffers = BatchBuffers(scheduling.dims)
        with closing(load_engine(config, setup.spec, setup.model, buffers)) as engine:
            log.info("loaded %s in %.1f s", name, time.monotonic() - started)
            longest = _warm_up(engine, buffers, scheduling)
            scheduling = replace(scheduling, step_budget_ms=budget_ms(longest))
            scheduler = Scheduler(scheduling, ring.geometry, ring.g, ring.f, buffers)
            driver = Driver(scheduler, engine, drain_timeout_s=config.engine.drain_timeout_s)
            stop.reach(driver)
            ring.publish()
            serving(name, ring.epoch, longest)
            with Announcer(config.instance.run_dir, ring) if config.ring.transport == "verbs" else nullcontext():
                driver.run()


def load_engine(config: ApplianceConfig, spec: ModelSpec, model: PreparedModel, buffers: BatchBuffers) -> Engine:
    """The engine that ``config`` names over ``buffers``, with the weights of ``model``."""
    return ReferenceEngine(
        spec,
        model.tensors(),
        buffers,
        pages=config.engine.pages,
        page_tokens=config.engine.page_tokens,
        threads=config.engine.threads,
        max_context=config.engine.max_context,
    )


def memory_plan(config: ApplianceConfig, spec: ModelSpec) -> MemoryPlan:
    """What this configuration takes in memory: the engine, and the ring."""
    e, geometry = config.engine, config.ring.geometry()
    settings = EngineSettings(
        lanes=e.lanes,
        batch_tokens=e.batch_tokens,
        pages=e.pages,
        page_tokens=e.page_tokens,
        max_context=e.max_context,
        threads=e.threads,
    )
    return MemoryPlan({**reference.needs(spec, settings), "ring": geometry.g_bytes + geometry.f_bytes})


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
