"""An engine without a model, for tests and measurements of the scheduler on a device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver as cu

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.seam.batch import Kind
from blink.engine.synthetic import TOKEN_BYTES
from blink.engine.synthetic.layout import (
    DONE,
    ENTRIES,
    FILL,
    FILL_BLOCKS,
    HASH,
    HOLD,
    NOTHING,
    TRACE,
    EndArguments,
    FillArguments,
    HashArguments,
    HoldArguments,
)
from blink.gpu.cuda import Device, Stream
from blink.gpu.kernels import load
from blink.gpu.memory import DeviceMemory, mapped_words

_TRACE_HEAD = 16


class SyntheticEngine:
    """Answers with hashes of what a model would attend to, or, with ``hashes`` false, with token 0.

    ``nodes`` is the number of kernels in each graph; with fewer than are needed there are as many as are needed. Those
    that do nothing are replaced by ones that fill the device for ``fill_rounds`` each, if that is not 0.
    ``trace`` is how many first prefills are remembered for :meth:`traced`. With ``may_hang``, a step runs for as long
    as :attr:`held` is not 0.
    """

    exact = True

    def __init__(
        self, device: Device, buffers: DeviceBuffers, *, pages: int, page_tokens: int, vocab: int, hashes: bool = True,
        nodes: int = 1, fill_rounds: int = 0, trace: int = 0, may_hang: bool = False,
    ) -> None:  # fmt: skip
        self._kernels = load(device, *ENTRIES)
        self._buffers, self._page_tokens, self._vocab = buffers, page_tokens, vocab
        self._hashes, self._nodes, self._fill_rounds = hashes, nodes, fill_rounds
        count = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self._full_grid = FILL_BLOCKS * device.attribute(count)
        self._kv = DeviceMemory(device, TOKEN_BYTES * pages * page_tokens, "synthetic keys and values")
        self._trace = DeviceMemory(device, _TRACE_HEAD + TRACE.size * trace, "the trace")
        self._trace_size = trace
        self.held: npt.NDArray[np.uint32] | None = None
        if may_hang:
            self.held, self._held_address = mapped_words(1)

    def tune(self, kind: Kind, size: int) -> None:
        """See :class:`blink.engine.device.captured.CapturedEngine`; nothing is to be chosen."""

    def enqueue(self, kind: Kind, size: int, stream: Stream) -> None:
        """See :class:`blink.engine.device.captured.CapturedEngine`."""
        lanes = self._buffers.dims["lanes"]
        used = 1 + self._hashes + (self.held is not None)
        if self._hashes:
            self._enqueue_hash(min(size, lanes), stream)
        if self.held is not None:
            self._kernels[HOLD.name].enqueue(1, HoldArguments(self._held_address), stream)
        for _ in range(used, self._nodes):
            self._enqueue_filler(stream)
        self._kernels[DONE.name].enqueue(1, EndArguments(self._buffers.address("control")), stream)

    def _enqueue_filler(self, stream: Stream) -> None:
        if not self._fill_rounds:
            return self._kernels[NOTHING.name].enqueue(1, None, stream)
        arguments = FillArguments(rounds=self._fill_rounds, never=self._kv.address)
        return self._kernels[FILL.name].enqueue(self._full_grid, arguments, stream)

    def _enqueue_hash(self, rows: int, stream: Stream) -> None:
        arguments = HashArguments(
            batch=self._buffers.pointers,
            kv=self._kv.address,
            page_tokens=self._page_tokens,
            lane_pages=self._buffers.dims["lane_pages"],
            vocab=self._vocab,
            traced=self._trace.address,
            trace=self._trace.address + _TRACE_HEAD,
            trace_size=self._trace_size,
        )
        self._kernels[HASH.name].enqueue(rows, arguments, stream)

    def traced(self) -> list[tuple[int, int]]:
        """(step, seed) of each request that began to be prefilled, in the order of the steps; resumed ones again."""
        count = min(int(self._trace.read(0, 4).view(np.uint32)[0]), self._trace_size)
        entries = self._trace.read(_TRACE_HEAD, TRACE.size * count).view(TRACE.dtype())
        return sorted((int(entry["step"]), int(entry["seed"])) for entry in entries)

    def close(self) -> None:
        """Free the memory. No graph of this engine may run."""
        self._kv.free()
        self._trace.free()
