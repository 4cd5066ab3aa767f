"""What every engine offers to the part that drives it, and what it takes in memory."""

from __future__ import annotations

from typing import Protocol

from blink.model.spec import ModelSpec

FLOAT32 = 4


class Engine(Protocol):
    """Runs the model over the step buffers it was made with; see :mod:`blink.engine.seam.batch`."""

    def run(self) -> None:
        """Execute ``control.rows`` rows, fill the outputs, then set ``control.done = control.step``.

        Never raises for what a step contains: a row that cannot be sampled gets token -1, a step that cannot be run
        sets ``control.error``.
        """

    def close(self) -> None:
        """Release memory; the engine cannot be used afterwards."""


def weight_bytes(spec: ModelSpec, item: int = FLOAT32) -> int:
    """Bytes of all weights at ``item`` bytes each."""
    return spec.parameters() * item


def kv_bytes_per_token(spec: ModelSpec, item: int = FLOAT32) -> int:
    """Bytes of keys and values that one token of context takes, at ``item`` bytes per number."""
    return 2 * spec.layers * spec.kv_width * item
