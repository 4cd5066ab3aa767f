"""Loading the native engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.native.engine import NativeEngine
from blink.engine.seam.engine import EngineSettings
from blink.gpu.cuda import Device
from blink.model.prepared import PreparedModel
from blink.model.spec import ModelSpec


def load(
    device: Device, model: PreparedModel, spec: ModelSpec, settings: EngineSettings, buffers: DeviceBuffers,
    *, choices: Path,
) -> NativeEngine:  # fmt: skip
    """The engine with the weights of ``model``, or random ones; ``choices`` has the algorithms of its matrices.

    Raises BlinkError where the checkpoint does not fit ``spec``, or the device cannot run it.
    """
    seed = settings.random_seed
    weights: Mapping[str, Any] | int = model.tensors() if seed is None else seed
    return NativeEngine(
        device, spec, weights, buffers, pages=settings.pages, page_tokens=settings.page_tokens,
        max_context=settings.max_context, dtype=settings.dtype, exact=settings.exact, choices=choices,
    )  # fmt: skip
