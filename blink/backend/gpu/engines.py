"""The engines that run on a GPU, by the name that a configuration gives them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from blink.backend.memory import MemoryPlan
from blink.backend.scheduler import state_size
from blink.backend.setup import Setup
from blink.engine import native, synthetic
from blink.engine.device.buffers import DeviceBuffers, step_buffer_bytes
from blink.engine.device.captured import CapturedEngine
from blink.engine.native.engine import NativeEngine
from blink.engine.seam.engine import DType, EngineSettings
from blink.engine.synthetic.engine import SyntheticEngine
from blink.gpu.cuda import Device
from blink.gpu.toolchain import cache_folder

BYTES_PER_GRAPH = 3 << 19
"""What the driver takes for one graph of some 350 kernels, rounded up (docs/performance.md)."""
SYNTHETIC_NODES = 20


class GpuEngine(CapturedEngine, Protocol):
    """An engine on a device that can be given back."""

    def close(self) -> None:
        """Free the memory. No graph of this engine may run."""


def dtype_of(setup: Setup) -> DType:
    """The type that ``engine.dtype`` means for this checkpoint: bfloat16 where it is that, else float16."""
    if setup.config.engine.dtype != "auto":
        return setup.config.engine.dtype
    stored = setup.model.config.get("dtype") or setup.model.config.get("torch_dtype")
    return "bfloat16" if stored == "bfloat16" else "float16"


def choices_path(setup: Setup) -> Path:
    """Where the native engine keeps the algorithms that it chose for its matrices."""
    return cache_folder(setup.config.engine.cache_dir) / f"products-{setup.config.instance.name}.json"


def load_engine(device: Device, setup: Setup, buffers: DeviceBuffers) -> GpuEngine:
    """The engine that the configuration names, its weights loaded, over ``buffers``. Raises BlinkError."""
    engine = setup.config.engine
    if engine.kind == "synthetic":
        return SyntheticEngine(
            device, buffers, pages=engine.pages, page_tokens=engine.page_tokens, vocab=setup.spec.vocab,
            nodes=SYNTHETIC_NODES,
        )  # fmt: skip
    weights: Mapping[str, Any] | int = setup.model.tensors() if engine.random_seed is None else engine.random_seed
    return NativeEngine(
        device, setup.spec, weights, buffers, pages=engine.pages, page_tokens=engine.page_tokens,
        max_context=engine.max_context, dtype=dtype_of(setup), exact=engine.exact,
        choices=choices_path(setup),
    )  # fmt: skip


def memory_plan(setup: Setup) -> MemoryPlan:
    """What the configuration takes of the GPU's memory. Needs no GPU."""
    engine, scheduling = setup.config.engine, setup.scheduling
    packed, geometry = scheduling.pack(), setup.config.ring.geometry()
    settings = EngineSettings(
        lanes=engine.lanes, batch_tokens=engine.batch_tokens, pages=engine.pages, page_tokens=engine.page_tokens,
        max_context=engine.max_context, dtype=dtype_of(setup), exact=engine.exact,
    )  # fmt: skip
    parts = (synthetic if engine.kind == "synthetic" else native).needs(setup.spec, settings)
    parts["steps"] = step_buffer_bytes(scheduling.dims)
    if engine.driver != "host":
        parts["scheduler"] = state_size(packed, geometry)
    if setup.config.ring.transport == "verbs":
        parts["ring"] = geometry.g_bytes + geometry.f_bytes
    decode, prefill = scheduling.buckets
    parts["graphs"] = BYTES_PER_GRAPH * (len(decode) + len(prefill)) * (2 if engine.driver == "persistent" else 1)
    return MemoryPlan(parts)
