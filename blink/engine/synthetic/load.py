"""Making the synthetic engine as a backend's engine."""

from __future__ import annotations

from pathlib import Path

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.seam.engine import EngineSettings
from blink.engine.synthetic.engine import SyntheticEngine
from blink.gpu.cuda import Device
from blink.model.prepared import PreparedModel
from blink.model.spec import ModelSpec

NODES = 20


def load(
    device: Device, model: PreparedModel, spec: ModelSpec, settings: EngineSettings, buffers: DeviceBuffers,
    *, choices: Path,
) -> SyntheticEngine:  # fmt: skip
    """The engine for the vocabulary of ``spec``. It has no weights and chooses nothing."""
    return SyntheticEngine(
        device, buffers, pages=settings.pages, page_tokens=settings.page_tokens, vocab=spec.vocab, nodes=NODES
    )  # fmt: skip
