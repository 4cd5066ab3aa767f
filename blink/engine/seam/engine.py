"""What every engine offers to the part that drives it, and what it takes in memory.

An engine is a package, named in blink/registry.py.

``needs(spec, settings)`` in the package returns the bytes that the engine takes, by part, as ``dict[str, int]``. The
keys go into messages: a part that a setting makes smaller has that setting's name. The package imports nothing that
only this engine needs.

``load`` in the package's module ``load`` makes the engine. On a CPU ``load(model, spec, settings, buffers)`` returns an
:class:`Engine` over :class:`blink.engine.seam.buffers.BatchBuffers`. On a GPU ``load(device, model, spec, settings,
buffers, *, choices)`` returns a :class:`blink.engine.device.captured.CapturedEngine` over
:class:`blink.engine.device.buffers.DeviceBuffers`; ``choices`` is a file in which it may keep what it chose.

``model`` is a :class:`blink.model.prepared.PreparedModel`, ``spec`` its :class:`blink.model.spec.ModelSpec`,
``settings`` an :class:`EngineSettings`. Both functions raise BlinkError for what the engine cannot do.
"""

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
    GPU; ``threads`` are the reference engine's, all of the CPU's with None; ``exact`` and ``random_seed`` (of weights
    in place of the checkpoint's, or None) are the native engine's.
    """

    lanes: int
    batch_tokens: int
    pages: int
    page_tokens: int
    max_context: int
    dtype: DType = "float16"
    threads: int | None = None
    exact: bool = False
    random_seed: int | None = None

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
