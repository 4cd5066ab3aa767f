"""Loading the reference engine."""

from __future__ import annotations

from blink.engine.reference.engine import ReferenceEngine
from blink.engine.seam.buffers import BatchBuffers
from blink.engine.seam.engine import EngineSettings
from blink.model.prepared import PreparedModel
from blink.model.spec import ModelSpec


def load(model: PreparedModel, spec: ModelSpec, settings: EngineSettings, buffers: BatchBuffers) -> ReferenceEngine:
    """The engine with the weights of ``model``. Raises BlinkError where the checkpoint does not fit ``spec``."""
    return ReferenceEngine(
        spec, model.tensors(), buffers, pages=settings.pages, page_tokens=settings.page_tokens,
        threads=settings.threads, max_context=settings.max_context,
    )  # fmt: skip
