"""What every engine offers to the part that drives it, and what it takes in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from blink.model.spec import ModelSpec

FLOAT32 = 4
DType = Literal["float16", "bfloat16"]


@dataclass(frozen=True)
class EngineSettings:
    """What a configuration says of an engine: the shapes that it runs, and how.

    ``lanes`` and ``batch_tokens`` are rows and packed tokens of the largest step; the cache has ``pages`` pages of
    ``page_tokens`` positions, a request has ``max_context`` of them at most. ``dtype`` is of weights and cache on a
    GPU; ``threads`` are the reference engine's, all of the CPU's with None; ``exact`` is the native engine's.
    """

    lanes: int
    batch_tokens: int
    pages: int
    page_tokens: int
    max_context: int
    dtype: DType = "float16"
    threads: int | None = None
    exact: bool = False

    @property
    def dims(self) -> Mapping[str, int]:
        """Dimensions of the step buffers; see :data:`blink.engine.seam.batch.BATCH`."""
        return {
            "lanes": self.lanes,
            "tokens": self.batch_tokens,
            "lane_pages": -(-self.max_context // self.page_tokens),
        }


class Engine(Protocol):
    """Runs the model over the step buffers it was made with; see :mod:`blink.engine.seam.batch`."""

    def run(self) -> None:
        """Execute ``control.rows`` rows, fill the outputs, then set ``control.done = control.step``.

        Never raises for what a step contains: a row that cannot be sampled gets token -1, a step that cannot be run
        sets ``control.error``.
        """

    def close(self) -> None:
        """Release memory; the engine cannot be used afterwards."""


def kv_bytes_per_token(spec: ModelSpec, item: int = FLOAT32) -> int:
    """Bytes of keys and values that one token of context takes, at ``item`` bytes per number."""
    return 2 * spec.layers * spec.kv_width * item
