"""Running captured steps from the host: for a scheduler on a CPU thread, for warm-up, and for checks.

The step buffers exist twice, in device memory and, laid out alike, in page-locked host memory. A step is copied in,
its graph launched and waited for, and its outputs copied back: what a serving stack does whose scheduler is on a CPU.
"""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver as cu

from blink.engine.device.buffers import DeviceBuffers
from blink.engine.device.captured import Graphs
from blink.engine.seam.batch import BATCH, Kind
from blink.engine.seam.buffers import BatchBuffers
from blink.engine.seam.engine import Engine
from blink.errors import BlinkError
from blink.gpu.cuda import Device, call
from blink.gpu.graphs import Exec, destroy_exec, instantiate
from blink.gpu.memory import mapped_words
from blink.ring.layout import Flag


class MirroredBuffers(BatchBuffers):
    """Step buffers in page-locked host memory, at the offsets that they have in ``device_buffers``."""

    def __init__(self, device_buffers: DeviceBuffers) -> None:
        self.dims = dict(device_buffers.dims)
        words, _ = mapped_words(-(-device_buffers.memory.size // 4))
        self.raw = words.view(np.uint8)
        self._arrays = {}
        for name, (shape, dtype) in BATCH.shapes(self.dims).items():
            at = device_buffers.offset(name)
            self._arrays[name] = self.raw[at : at + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)
        self.pointers = np.array([a.ctypes.data for a in self._arrays.values()], np.uint64)


class HostedEngine(Engine):
    """The engine whose ``graphs`` work on ``device_buffers``, over host ``buffers`` of its own.

    Graphs are instantiated when they are first used, or all at once by :meth:`instantiate_all`.
    """

    def __init__(self, device: Device, graphs: Graphs, device_buffers: DeviceBuffers) -> None:
        self.device, self._graphs, self._device_buffers = device, graphs, device_buffers
        self.buffers = MirroredBuffers(device_buffers)
        self._control = self.buffers.control.view(np.uint32).reshape(-1)
        self._execs: dict[int, Exec] = {}
        self._stream = device.new_stream()
        at = device_buffers.offset
        self._step = (0, at("lane_params"))
        self._lanes = (at("lane_params"), at("out_token") - at("lane_params"))
        self._tokens = (at("out_token"), at("out_logprob") - at("out_token"))
        self._logprobs = (at("out_logprob"), device_buffers.memory.size - at("out_logprob"))
        self._status = (at("control"), self.buffers.control.nbytes)
        self._wants_logprobs = False

    def instantiate_all(self) -> None:
        """Make every graph executable now."""
        for index in range(len(self._graphs.graphs)):
            self._exec(index)

    def _exec(self, index: int) -> Exec:
        if index not in self._execs:
            self._execs[index] = instantiate(self.device, self._graphs.graphs[index])
        return self._execs[index]

    def run(self) -> None:
        """Execute the step in ``buffers``; see :class:`blink.engine.seam.engine.Engine`. Raises BlinkError where the
        device fails, after which nothing can run on it."""
        kind, graph = int(self._control[0]), int(self._control[1])
        self._to_device(*self._step)
        if kind == Kind.PREFILL:  # the only steps with lanes that are new
            self._to_device(*self._lanes)
            flags = self.buffers.lane_params["flags"]
            self._wants_logprobs = bool((flags & Flag.LOGPROBS).any())
        call(cu.cuGraphLaunch(self._exec(self._graphs.number(Kind(kind), graph)), self._stream), "launching a step")
        self._to_host(*self._tokens)
        if self._wants_logprobs:
            self._to_host(*self._logprobs)
        self._to_host(*self._status)
        call(cu.cuStreamSynchronize(self._stream), "waiting for a step")

    def run_shape(self, kind: Kind, size: int | None = None) -> None:
        """Execute a step that somebody described by hand, in the tightest graph, or in the one for ``size``.

        Raises BlinkError where the engine reports an error or does not say that it finished.
        """
        control = self.buffers.control[0]
        need = size or int(control["rows" if kind == Kind.DECODE else "tokens"])
        control["kind"], control["graph"] = kind, self._graphs.tightest(kind, need)
        self._to_device(*self._lanes)
        self.run()
        if control["error"] or control["done"] != control["step"]:
            raise BlinkError(
                f"the engine's graph for {kind.name} of {need} ended with error {control['error']}, step "
                f"{control['step']}, done {control['done']}",
                "check the checkpoint with `blink model check`, or prepare it again",
            )

    def reset(self) -> None:
        """Forget the steps that were run by hand, on both sides."""
        self._control[:] = 0
        self._to_device(*self._status)
        call(cu.cuStreamSynchronize(self._stream), "waiting for a copy")

    def _to_device(self, at: int, size: int) -> None:
        source, target = self.buffers.raw.ctypes.data + at, self._device_buffers.memory.address + at
        call(cu.cuMemcpyHtoDAsync(target, source, size, self._stream), "copying a step to the device")

    def _to_host(self, at: int, size: int) -> None:
        target, source = self.buffers.raw.ctypes.data + at, self._device_buffers.memory.address + at
        call(cu.cuMemcpyDtoHAsync(target, source, size, self._stream), "copying a step's outputs")

    def close(self) -> None:
        """Release the executable graphs. Nothing may run."""
        for made in self._execs.values():
            destroy_exec(made)
        self._execs = {}
