"""The engine of a configuration on a GPU: loading it, and what it and its surroundings take of the GPU's memory."""

from __future__ import annotations

from pathlib import Path

from blink.backend.memory import MemoryPlan
from blink.backend.setup import Setup
from blink.engine.device.buffers import DeviceBuffers, step_buffer_bytes
from blink.engine.device.captured import CapturedEngine
from blink.gpu.cuda import Device
from blink.gpu.toolchain import cache_folder
from blink.registry import driver_named, engine_loader, engine_needs


def choices_path(setup: Setup) -> Path:
    """Where an engine may keep what it chose for its graphs, which therefore depend on that file."""
    return cache_folder(setup.config.engine.cache_dir) / f"products-{setup.config.instance.name}.json"


def load_engine(device: Device, setup: Setup, buffers: DeviceBuffers) -> CapturedEngine:
    """The engine that the configuration names, its weights loaded, over ``buffers``. Raises BlinkError."""
    load = engine_loader(setup.config.engine.kind)
    made: CapturedEngine = load(device, setup.model, setup.spec, setup.settings, buffers, choices=choices_path(setup))
    return made


def memory_plan(setup: Setup) -> MemoryPlan:
    """What the configuration takes of the GPU's memory. Needs no GPU."""
    engine = setup.config.engine
    parts: dict[str, int] = engine_needs(engine.kind)(setup.spec, setup.settings)
    steps = {"steps": step_buffer_bytes(setup.scheduling.dims)}
    return MemoryPlan(parts | steps | driver_named(engine.driver).needs(setup))
