"""The scheduler's kernels on a CUDA device, driven from the host one launch at a time.

Ring and step buffers are in pinned host memory that the device maps at the same addresses, as in the `single` profile;
the scheduler's own memory is the device's.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from blink import core
from blink.backend.gpu.loop_layout import INIT, STEP, THREADS, InitArguments, StepArguments
from blink.backend.scheduler.config import SchedulerConfig
from blink.backend.scheduler.host import Decision
from blink.engine.seam.batch import BATCH, DECISION, Control, Kind
from blink.engine.seam.buffers import BatchBuffers
from blink.gpu.cuda import Device as Gpu
from blink.ring.layout import Counter, Geometry, Reason
from tests.kernels.ring_writer import CANARY, PAGE, Ring


def call(result: tuple[Any, ...]) -> Any:
    """The value of a driver call. Raises RuntimeError."""
    error, *values = result
    if error != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(error))
    return values[0] if values else None


class Device:
    """Device 0 with the kernels of step.cu."""

    def __init__(self) -> None:
        self.gpu = Gpu()
        self.arch = self.gpu.arch
        self.kernels: dict[str, Any] = self.gpu.kernels("drivers/step.cu", [INIT.name, STEP.name])

    def pinned(self, size: int) -> np.ndarray:
        """Zeroed u8 host memory that the device maps at its host address, with a page of canaries on either side."""
        flags = cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP
        address = int(call(cu.cuMemHostAlloc(size + 3 * PAGE, flags)))
        assert int(call(cu.cuMemHostGetDevicePointer(address, 0))) == address, "the device maps it elsewhere"
        raw = np.frombuffer((ctypes.c_uint8 * (size + 3 * PAGE)).from_address(address), np.uint8)
        raw[:] = CANARY
        start = -address % PAGE or PAGE
        inner = raw[start : start + size]
        inner[:] = 0
        return inner

    def enqueue(self, stream: Any, name: str, *arguments: np.ndarray) -> None:
        """Put a kernel of one block on ``stream``; ``arguments`` are host arrays that hold the parameters."""
        pointers = (ctypes.c_void_p * len(arguments))(*(a.ctypes.data for a in arguments))
        call(cu.cuLaunchKernel(self.kernels[name], 1, 1, 1, THREADS, 1, 1, 0, stream, ctypes.addressof(pointers), 0))

    def launch(self, name: str, *arguments: np.ndarray) -> None:
        """Run a kernel of one block to its end."""
        self.enqueue(0, name, *arguments)
        call(cu.cuCtxSynchronize())

    def load(self, cubin: bytes, *names: str) -> None:
        """Add the kernels ``names`` of ``cubin``."""
        module = call(cu.cuModuleLoadData(cubin))
        self.kernels |= {n: call(cu.cuModuleGetFunction(module, n.encode())) for n in names}

    def copy_in(self, array: np.ndarray) -> int:
        """The address of a copy of ``array`` in device memory."""
        address = int(call(cu.cuMemAlloc(array.nbytes)))
        call(cu.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
        return address

    def make(self, config: SchedulerConfig, geometry: Geometry) -> tuple[Ring, BatchBuffers, DeviceCore]:
        """Ring, buffers and scheduler, for :class:`tests.kernels.world.World`."""
        ring, buffers = Ring(geometry, config, self.pinned), PinnedBuffers(config.dims, self)
        core = DeviceCore(self, config, geometry, g=ring.g.ctypes.data, f=ring.f.ctypes.data, pointers=buffers.pointers)
        return ring, buffers, core


class PinnedBuffers(BatchBuffers):
    """Step buffers that the device sees."""

    def __init__(self, dims: dict[str, int], device: Device) -> None:
        self.dims = {**dims, "lanes1": dims["lanes"] + 1}
        self.arrays = self._arrays = {}
        for name, (shape, dtype) in BATCH.shapes(self.dims).items():
            self._arrays[name] = device.pinned(int(np.prod(shape)) * dtype.itemsize).view(dtype).reshape(shape)
        self.pointers = np.array([a.ctypes.data for a in self._arrays.values()], np.uint64)


class DeviceCore:
    """The scheduler on the device; the calls of :class:`blink.backend.scheduler.host.Scheduler` that the tests need."""

    def __init__(
        self, device: Device, config: SchedulerConfig, geometry: Geometry, *, g: int, f: int, pointers: np.ndarray
    ) -> None:
        """``g``, ``f`` and ``pointers`` (the C ``Batch``) are device addresses."""
        self.device, packed, lib = device, config.pack(), core.library()
        lib.blink_sched_size.restype = ctypes.c_uint64
        self.size = lib.blink_sched_size(ctypes.c_void_p(packed.ctypes.data), geometry.slots, geometry.parts)
        self.memory = np.array([int(call(cu.cuMemAlloc(self.size)))], np.uint64)
        call(cu.cuMemsetD8(int(self.memory[0]), 0, self.size))
        self.control = device.pinned(4).view(np.uint32)
        self.decision = device.pinned(DECISION.size).view(DECISION.dtype())
        arguments = InitArguments(
            memory=int(self.memory[0]), config=packed, g=g, f=f, batch=pointers, control=self.control.ctypes.data
        )
        device.launch(INIT.name, arguments.record())

    def turn(self, now_ns: int = 0) -> StepArguments:
        """Of a step."""
        return StepArguments(memory=int(self.memory[0]), out=self.decision.ctypes.data, now_ns=now_ns)

    def step(self, now_ns: int = 0) -> Decision:
        self.device.launch(STEP.name, self.turn(now_ns).record())
        kind, graph, rows, tokens = self.decision[0].tolist()
        return Decision(Kind(kind), graph, rows, tokens)

    def begin(self, now_ns: int = 0) -> Decision | None:
        raise NotImplementedError("step.cu has the stepwise driver only")

    def attend(self, now_ns: int = 0) -> None:
        raise NotImplementedError("step.cu has the stepwise driver only")

    def request(self, control: Control) -> None:
        self.control[0] = control

    def _copy(self) -> np.ndarray:
        """The scheduler's memory, copied to the host, 64-byte aligned."""
        raw = np.zeros(self.size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        call(cu.cuMemcpyDtoH(raw.ctypes.data + start, int(self.memory[0]), self.size))
        return raw[start:]

    def counters(self) -> dict[str, int]:
        raw = np.zeros(128, np.uint64)
        copy = self._copy()
        core.library().blink_sched_counters(ctypes.c_void_p(copy.ctypes.data), ctypes.c_void_p(raw.ctypes.data))
        named = {c.name: int(raw[c]) for c in Counter if c is not Counter.FINISHED_BASE}
        return named | {f"FINISHED_{r.name}": int(raw[Counter.FINISHED_BASE + r]) for r in Reason if r}

    def check_integrity(self) -> None:
        copy, text = self._copy(), ctypes.create_string_buffer(256)
        core.library().blink_sched_check(ctypes.c_void_p(copy.ctypes.data), text, ctypes.c_uint64(len(text)))
        if text.value:
            raise AssertionError(text.value.decode())
