"""The native engine behind the harness of the reference engine's tests: steps described by hand, run from the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.device.captured import capture_all
from blink.engine.device.hosted import HostedEngine
from blink.engine.native.engine import NativeEngine
from blink.engine.seam.batch import Kind
from blink.engine.seam.engine import EngineSettings
from blink.errors import BlinkError
from blink.model.spec import ModelSpec
from tests.engine.harness import Harness

DECODE, PREFILL = (1, 2, 8, 16, 20, 32), (8, 64, 128, 256)


class NativeHarness(Harness):
    """As :class:`tests.engine.harness.Harness`, with ``engine`` on ``device``.

    A step whose rows have one token each is a DECODE step of the tightest bucket, or of :attr:`bucket`; the first
    tokens of prompts of one token too, which the scheduler would not do but an engine has to allow.
    """

    def __init__(
        self, device: Any, spec: ModelSpec, tensors: Mapping[str, Any], *, dtype: str = "float16", lanes: int = 32,
        context: int = 256, page_tokens: int = 8, seed: int = 0, prefill: Sequence[int] = PREFILL,
        **options: Any,
    ) -> None:  # fmt: skip
        pages = lanes * -(-context // page_tokens)
        self.settings = EngineSettings(
            lanes=lanes, batch_tokens=max(prefill), pages=pages, page_tokens=page_tokens, max_context=context,
        )  # fmt: skip
        self.device_buffers = DeviceBuffers(device, self.settings.dims)
        self.native = NativeEngine(
            device, spec, tensors, self.device_buffers, pages=pages, page_tokens=page_tokens, max_context=context,
            dtype=dtype, **options,
        )  # fmt: skip
        self.graphs = capture_all(device, self.native, [n for n in DECODE if n <= lanes], list(prefill))
        self.hosted = HostedEngine(device, self.graphs, self.device_buffers)
        self.buffers, self.engine = self.hosted.buffers, self
        self.device, self.vocab, self.bucket = device, spec.vocab, 0
        self.page_tokens = page_tokens
        self.free = list(np.random.default_rng(seed).permutation(pages))
        self.pages: dict[int, list[int]] = {}
        self.length = [0] * lanes
        for lane in range(lanes):
            self.params(lane)

    def run(self) -> None:
        """What an engine does with the step in the buffers: an error is told in ``control``."""
        control = self.buffers.control[0]
        kind = Kind.DECODE if control["tokens"] == control["rows"] else Kind.PREFILL
        try:
            self.hosted.run_shape(kind, self.bucket or None)
        except BlinkError:
            assert control["error"], "the step did not finish"

    def logits(self, rows: int) -> np.ndarray:
        """Of the last step, f32 [rows, vocab]."""
        memory = self.native.activations.memory
        raw = memory.read(self.native.activations.logits - memory.address, 4 * rows * self.vocab)
        return raw.view(np.float32).reshape(rows, self.vocab).copy()

    def close(self) -> None:
        """Free everything."""
        self.hosted.close()
        self.graphs.close()
        self.native.close()
        self.device_buffers.close()


def rounded_tensors(tensors: Mapping[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """The checkpoint as an engine of that type has it: matrices rounded, vectors exact; in f32 for the reference."""
    from tests.gpu.native import rounded

    return {name: rounded(t, dtype) if t.ndim > 1 else t for name, t in tensors.items()}
