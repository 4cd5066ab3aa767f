"""The engines that run on a GPU, by the name that a configuration gives them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from blink.backend.memory import MemoryPlan
from blink.backend.setup import Setup
from blink.engine.device.buffers import DeviceBuffers, step_buffer_bytes
from blink.engine.device.captured import CapturedEngine
from blink.engine.native.engine import NativeEngine
from blink.engine.native.memory import memory_parts
from blink.engine.native.shape import DType
from blink.engine.synthetic.engine import SyntheticEngine
from blink.gpu.cuda import Device
from blink.gpu.toolchain import cache_folder
from blink.registry import driver_named

SYNTHETIC_NODES = 20


class GpuEngine(CapturedEngine, Protocol):
    """An engine on a device that can be given back."""

    exact: bool
    """Whether the graph that a step runs in changes no bit of an answer."""

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
    parts: dict[str, int] = {}
    if engine.kind == "synthetic":
        parts["engine.pages"] = 4 * engine.pages * engine.page_tokens
    else:
        parts |= memory_parts(
            setup.spec, dtype=dtype_of(setup), pages=engine.pages, page_tokens=engine.page_tokens,
            max_context=engine.max_context, dims=scheduling.dims,
        )  # fmt: skip
    parts["steps"] = step_buffer_bytes(scheduling.dims)
    return MemoryPlan(parts | driver_named(engine.driver).needs(setup))
