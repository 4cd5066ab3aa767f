"""What the reference engine takes of a machine's memory."""

from __future__ import annotations

from blink.engine.seam.engine import FLOAT32, EngineSettings, kv_bytes_per_token
from blink.model.spec import ModelSpec


def needs(spec: ModelSpec, settings: EngineSettings) -> dict[str, int]:
    """Bytes of host memory, by what makes them fewer: float32 weights and cache, and one step's activations."""
    activations = (
        settings.batch_tokens * (6 * spec.hidden + 4 * spec.intermediate + 2 * spec.q_width)
        + 4 * settings.lanes * spec.vocab
    )
    return {
        "weights": FLOAT32 * spec.parameters(),
        "engine.pages": kv_bytes_per_token(spec) * settings.pages * settings.page_tokens,
        "steps": FLOAT32 * activations,
    }
