"""The engine without a model: what the scheduler is measured and tested with on a device."""

from __future__ import annotations

from blink.engine.seam.engine import EngineSettings
from blink.model.spec import ModelSpec

TOKEN_BYTES = 4
"""Of one position in its cache, which keeps a token's id where a model keeps keys and values."""


def needs(spec: ModelSpec, settings: EngineSettings) -> dict[str, int]:
    """Bytes of device memory, by what makes them fewer. ``spec`` counts for nothing: there are no weights."""
    return {"engine.pages": TOKEN_BYTES * settings.pages * settings.page_tokens}
