"""``blink backend``: allocate, load, serve the ring, stop."""

from __future__ import annotations

import logging
import signal
import sys
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from types import FrameType

from blink.backend.driver import Driver
from blink.backend.exclusive import RingLock
from blink.backend.memory import MemoryPlan, available_memory, require_room
from blink.backend.notify import notify
from blink.backend.scheduler import Scheduler, SchedulerConfig
from blink.config import ApplianceConfig
from blink.engine.buffers import BatchBuffers
from blink.engine.engine import FLOAT32, Engine, kv_bytes_per_token, weight_bytes
from blink.engine.reference import ReferenceEngine
from blink.engine.steps import describe_step
from blink.errors import BlinkError
from blink.model.prepared import PreparedModel
from blink.model.spec import ModelSpec
from blink.ring.announce import Announcer
from blink.ring.shm import RingObjects

WARM_UP_TOKENS = 64
BUDGET_STEPS = 4
"""A batch may last this many times what the warm-up foretells of the largest: other work may share the machine."""
BUDGET_MIN_S = 1.0

log = logging.getLogger("blink.backend")


def main(config: ApplianceConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Raises BlinkError where this machine cannot serve."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s blink backend: %(message)s")
    stop = _StopSignals()
    with RingLock(config.instance.ring_dir):
        model, spec, plan = _examine(config)
        log.info("memory: %s", plan)
        plan.require(available_memory())
        _serve(config, spec, model, stop)
    return 0


def check(config: ApplianceConfig) -> int:
    """Print the memory that ``config`` takes; returns the exit code. Changes nothing, and may run beside a backend.

    Raises BlinkError where this release cannot serve it: engine, transport, or shapes that the model does not have.
    """
    print(f"memory: {_examine(config)[2]}")
    return 0


def _examine(config: ApplianceConfig) -> tuple[PreparedModel, ModelSpec, MemoryPlan]:
    _require_supported(config)
    model = PreparedModel.open(config.model.path)
    spec = ModelSpec.from_config(model.config)
    _require_fit(config, spec)
    return model, spec, memory_plan(config, spec)


def _serve(config: ApplianceConfig, spec: ModelSpec, model: PreparedModel, stop: _StopSignals) -> None:
    name, started = config.model.served_name, time.monotonic()
    scheduling = _scheduling(config, spec, model)
    # Made before the weights are loaded, so that a full tmpfs is told at once; published when all else works.
    with closing(_create_ring(config, spec, model, scheduling)) as ring:
        buffers = BatchBuffers(scheduling.dims)
        with closing(load_engine(config, spec, model, buffers)) as engine:
            log.info("loaded %s in %.1f s", name, time.monotonic() - started)
            longest = _warm_up(engine, buffers, scheduling)
            budget_ms = int(1000 * max(BUDGET_MIN_S, BUDGET_STEPS * longest))
            scheduler = Scheduler(replace(scheduling, step_budget_ms=budget_ms), ring.geometry, ring.g, ring.f, buffers)
            driver = Driver(scheduler, engine, drain_timeout_s=config.engine.drain_timeout_s)
            stop.reach(driver)
            ring.publish()
            log.info(
                "serving %s as epoch %016x; the largest step takes about %.0f ms", name, ring.epoch, 1000 * longest
            )
            notify(READY="1", STATUS=f"serving {name}")
            with Announcer(config.instance.run_dir, ring) if config.ring.transport == "verbs" else nullcontext():
                driver.run()
    log.info("stopped")


def _scheduling(config: ApplianceConfig, spec: ModelSpec, model: PreparedModel) -> SchedulerConfig:
    """The scheduler's configuration. Every partition has an equal share of its records, so that the operator's takes
    none from the workers."""
    share = -(-(config.engine.lanes + config.engine.queue) // config.frontend.workers)
    try:
        return SchedulerConfig.for_engine(
            config.engine, spec.vocab, model.eos_ids, records=share * config.ring.partitions
        )
    except ValueError as e:
        raise BlinkError(f"{config.model.path}: {e}", "prepare a checkpoint that keeps to it") from None


def _create_ring(
    config: ApplianceConfig, spec: ModelSpec, model: PreparedModel, scheduling: SchedulerConfig
) -> RingObjects:
    geometry, e, partitions = config.ring.geometry(), config.engine, config.ring.partitions
    require_room(config.instance.ring_dir, geometry.g_bytes + geometry.f_bytes)
    return RingObjects.create(
        config.instance.ring_dir,
        geometry,
        lanes=e.lanes,
        queue_cap=scheduling.records // partitions * (partitions - 1),  # the rest is the operator's
        vocab=spec.vocab,
        max_context=e.max_context,
        ext_words=scheduling.ext_words,
        page_tokens=e.page_tokens,
        pages=e.pages,
        fingerprint=model.fingerprint,
    )


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
    """What this configuration takes in memory: float32 weights and KV pool, the ring, and one step's activations."""
    e, geometry = config.engine, config.ring.geometry()
    activations = (
        e.batch_tokens * (6 * spec.hidden + 4 * spec.intermediate + 2 * spec.q_width) + 4 * e.lanes * spec.vocab
    )
    return MemoryPlan(
        {
            "weights": weight_bytes(spec),
            "engine.pages": kv_bytes_per_token(spec) * e.pages * e.page_tokens,
            "ring": geometry.g_bytes + geometry.f_bytes,
            "steps": FLOAT32 * activations,
        }
    )


def _require_supported(config: ApplianceConfig) -> None:
    if config.engine.kind != "reference":
        raise BlinkError(f"engine.kind {config.engine.kind} is not in this release", "set it to reference")


def _require_fit(config: ApplianceConfig, spec: ModelSpec) -> None:
    if config.engine.max_context > spec.max_context:
        raise BlinkError(
            f"engine.max_context: {config.engine.max_context} exceeds the {spec.max_context} tokens of the checkpoint",
            f"set it to {spec.max_context} or less",
        )


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


class _StopSignals:
    """SIGTERM and SIGINT: end the process while it loads, stop the driver once there is one."""

    def __init__(self) -> None:
        self._driver: Driver | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def reach(self, driver: Driver) -> None:
        """From now on signals go to ``driver``."""
        self._driver = driver

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._driver is None:
            raise SystemExit(0)
        self._driver.stop()
