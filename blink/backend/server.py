"""``blink backend``: allocate, load, serve the ring, stop."""

from __future__ import annotations

import logging
import signal
import sys
import time
from types import FrameType

from blink.backend.driver import Driver
from blink.backend.exclusive import RingLock
from blink.backend.memory import MemoryPlan, available_memory, require_room
from blink.backend.notify import notify
from blink.backend.scheduler import Scheduler, SchedulerConfig
from blink.config import ApplianceConfig
from blink.engine.batch import MAX_EOS
from blink.engine.buffers import BatchBuffers
from blink.engine.engine import FLOAT32, Engine, kv_bytes_per_token, weight_bytes
from blink.engine.reference import ReferenceEngine
from blink.errors import BlinkError
from blink.model.prepared import PreparedModel
from blink.model.spec import ModelSpec
from blink.ring.shm import RingObjects

log = logging.getLogger("blink.backend")


def main(config: ApplianceConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Raises BlinkError where this machine cannot serve."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s blink backend: %(message)s")
    stop = _StopSignals()
    _require_supported(config)
    with RingLock(config.instance.ring_dir) as lock:
        lock.remove_stale_ring()
        model = PreparedModel.open(config.model.path)
        spec = ModelSpec.from_config(model.config)
        _require_fit(config, spec, model)
        plan = memory_plan(config, spec)
        log.info("memory: %s", plan)
        plan.require(available_memory())
        _serve(config, spec, model, stop)
    return 0


def _serve(config: ApplianceConfig, spec: ModelSpec, model: PreparedModel, stop: _StopSignals) -> None:
    started = time.monotonic()
    scheduling = SchedulerConfig.for_engine(config.engine, spec.vocab, model.eos_ids)
    # Made before the weights are loaded, so that a full tmpfs is told at once; published when all else works.
    ring = _create_ring(config, spec, model, scheduling)
    try:
        engine, buffers = load_engine(config, spec, model)
        try:
            _warm_up(engine, buffers, spec.vocab)
            scheduler = Scheduler(scheduling, ring.geometry, ring.g, ring.f, buffers)
            driver = Driver(scheduler, engine, drain_timeout_s=config.engine.drain_timeout_s)
            stop.reach(driver)
            ring.publish()
            log.info(
                "serving %s as epoch %016x, %.1f s after the start",
                config.model.served_name, ring.epoch, time.monotonic() - started,
            )  # fmt: skip
            notify(READY="1", STATUS=f"serving {config.model.served_name}")
            driver.run()
            log.info("stopped")
        finally:
            engine.close()
    finally:
        ring.unlink()
        ring.close()


def _create_ring(
    config: ApplianceConfig, spec: ModelSpec, model: PreparedModel, scheduling: SchedulerConfig
) -> RingObjects:
    geometry, e = config.ring.geometry(), config.engine
    require_room(config.instance.ring_dir, geometry.g_bytes + geometry.f_bytes)
    return RingObjects.create(
        config.instance.ring_dir,
        geometry,
        lanes=e.lanes,
        queue_cap=scheduling.records,
        vocab=spec.vocab,
        max_context=e.max_context,
        ext_words=scheduling.ext_words,
        page_tokens=e.page_tokens,
        pages=e.pages,
        fingerprint=model.fingerprint,
    )


def load_engine(config: ApplianceConfig, spec: ModelSpec, model: PreparedModel) -> tuple[Engine, BatchBuffers]:
    """The engine that ``config`` names, with the weights of ``model``, and the step buffers that it runs over."""
    e = config.engine
    buffers = BatchBuffers(
        {"lanes": e.lanes, "tokens": e.batch_tokens, "lane_pages": -(-e.max_context // e.page_tokens)}
    )
    engine = ReferenceEngine(
        spec,
        model.tensors(),
        buffers,
        pages=e.pages,
        page_tokens=e.page_tokens,
        threads=e.threads,
        eos=model.eos_ids,
        max_context=e.max_context,
    )
    return engine, buffers


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
    if config.ring.transport != "shm":
        raise BlinkError(f"ring.transport {config.ring.transport} is not in this release", "set it to shm")


def _require_fit(config: ApplianceConfig, spec: ModelSpec, model: PreparedModel) -> None:
    if config.engine.max_context > spec.max_context:
        raise BlinkError(
            f"engine.max_context: {config.engine.max_context} exceeds the {spec.max_context} tokens of the checkpoint",
            f"set it to {spec.max_context} or less",
        )
    if len(model.eos_ids) > MAX_EOS:
        raise BlinkError(
            f"{config.model.path}: {len(model.eos_ids)} end-of-sequence tokens", f"name at most {MAX_EOS} of them"
        )


def _warm_up(engine: Engine, buffers: BatchBuffers, vocab: int) -> None:
    """Run one token through every layer, before anyone can ask: what is loaded lazily is loaded now.

    Raises BlinkError where the engine has no answer to it.
    """
    control = buffers.control[0]
    control["rows"], control["tokens"], control["step"] = 1, 1, 1
    buffers.row_start[1] = 1
    buffers.row_kv_len[0] = buffers.row_sample[0] = 1
    buffers.lane_params[0]["top_p"] = buffers.lane_params[0]["repetition"] = 1.0
    engine.run()
    if control["done"] != 1 or control["error"] or not 0 <= buffers.out_token[0] < vocab:
        raise BlinkError(
            "the engine could not run its first step",
            "the checkpoint is damaged: `blink model check`, or prepare it again",
        )
    buffers.control[...] = 0


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
            raise SystemExit(128 + number)
        self._driver.stop()
