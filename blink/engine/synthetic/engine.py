"""An engine without a model, for tests and measurements of the scheduler on a device."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver as cu

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.seam.batch import Kind
from blink.gpu.cuda import Device, Stream, launch
from blink.gpu.memory import DeviceMemory, mapped_words

_NAMES = ("synthetic_hash", "synthetic_nothing", "synthetic_fill", "synthetic_hold", "synthetic_done")
_ROW_THREADS = 128
_TRACE_HEAD = 16
_BLOCKS_PER_SM = 2


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
        self._kernels = device.kernels("synthetic/synthetic.cu", _NAMES)
        self._buffers, self._page_tokens, self._vocab = buffers, page_tokens, vocab
        self._hashes, self._nodes, self._fill_rounds = hashes, nodes, fill_rounds
        count = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self._full_grid = _BLOCKS_PER_SM * device.attribute(count)
        self._kv = DeviceMemory(device, 4 * pages * page_tokens, "synthetic keys and values")
        self._trace = DeviceMemory(device, _TRACE_HEAD + 16 * trace, "the trace")
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
            launch(self._kernels["synthetic_hold"], 1, 1, [ctypes.c_uint64(self._held_address)], stream)
        for _ in range(used, self._nodes):
            self._enqueue_filler(stream)
        launch(self._kernels["synthetic_done"], 1, 1, [ctypes.c_uint64(self._buffers.address("control"))], stream)

    def _enqueue_filler(self, stream: Stream) -> None:
        if not self._fill_rounds:
            return launch(self._kernels["synthetic_nothing"], 1, 1, [], stream)
        arguments = [ctypes.c_uint32(self._fill_rounds), ctypes.c_uint64(self._kv.address)]
        return launch(self._kernels["synthetic_fill"], self._full_grid, 1024, arguments, stream)

    def _enqueue_hash(self, rows: int, stream: Stream) -> None:
        arguments = [
            self._buffers.struct,
            ctypes.c_uint64(self._kv.address),
            ctypes.c_uint32(self._page_tokens),
            ctypes.c_uint32(self._buffers.dims["lane_pages"]),
            ctypes.c_uint32(self._vocab),
            ctypes.c_uint64(self._trace.address),
            ctypes.c_uint64(self._trace.address + _TRACE_HEAD),
            ctypes.c_uint32(self._trace_size),
        ]
        launch(self._kernels["synthetic_hash"], rows, _ROW_THREADS, arguments, stream)

    def traced(self) -> list[tuple[int, int]]:
        """(step, seed) of each request that began to be prefilled, in the order of the steps; resumed ones again."""
        count = min(int(self._trace.read(0, 4).view(np.uint32)[0]), self._trace_size)
        entries = self._trace.read(_TRACE_HEAD, 16 * count).view(np.uint64).reshape(-1, 2)
        return sorted((int(step), int(seed)) for seed, step in entries)

    def close(self) -> None:
        """Free the memory. No graph of this engine may run."""
        self._kv.free()
        self._trace.free()
