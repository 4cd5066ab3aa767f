"""The CUDA driver through cuda-python: one device, and errors as BlinkError."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cu

from blink.errors import BlinkError
from blink.gpu.toolchain import cached_kernels

Kernel = Any
Stream = Any


def call(result: tuple[Any, ...], doing: str) -> Any:
    """The value of a call of CUDA, or None where it has none. Raises BlinkError naming what was being done."""
    error, *values = result
    if error != cu.CUresult.CUDA_SUCCESS:
        raise BlinkError(f"{doing}: {describe(error)}", "look at docs/gpu.md for the traps, and at the driver's log")
    return values[0] if values else None


def describe(error: Any) -> str:
    """Name and text of a CUresult."""
    text = cu.cuGetErrorString(error)[1]
    return f"{cu.CUresult(error).name} ({text.decode() if text else 'unknown'})"


def initialize() -> None:
    """Begin to use the CUDA driver. Raises BlinkError where there is none, or no device."""
    # A module that is loaded when it is first used may wait for every running kernel, and ours never end.
    os.environ["CUDA_MODULE_LOADING"] = "EAGER"
    missing = "install NVIDIA's driver, branch 580 or newer, on a machine with an NVIDIA GPU; nvidia-smi shows both"
    try:
        (error,) = cu.cuInit(0)
    except RuntimeError as e:
        raise BlinkError(f"no CUDA driver: {e}", missing) from None
    if error != cu.CUresult.CUDA_SUCCESS:
        raise BlinkError(f"no CUDA device: {describe(error)}", missing)


class Device:
    """A CUDA device whose primary context is current in the calling thread.

    ``arch`` is the target of its code, such as "sm_90"; ``stream`` is for work that begins and ends with a call of the
    host, and never waits for another stream. Raises BlinkError where there is no such device.
    """

    def __init__(self, ordinal: int = 0, cache: Path | None = None) -> None:
        """``cache`` is where compiled kernels are kept; see :func:`blink.gpu.toolchain.cache_folder`."""
        initialize()
        self._cache = cache
        self.handle = call(cu.cuDeviceGet(ordinal), f"CUDA device {ordinal}")
        self.context = call(cu.cuDevicePrimaryCtxRetain(self.handle), "making the device's context")
        self.make_current()
        attribute = cu.CUdevice_attribute
        major = self.attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = self.attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.arch = f"sm_{major}{minor}"
        self.name = call(cu.cuDeviceGetName(128, self.handle), "the device's name").split(b"\0")[0].decode()
        self.stream = self.new_stream()

    def make_current(self) -> None:
        """Use this device in the calling thread."""
        call(cu.cuCtxSetCurrent(self.context), "choosing the device")

    def attribute(self, attribute: Any) -> int:
        """The value of a CUdevice_attribute."""
        return int(call(cu.cuDeviceGetAttribute(attribute, self.handle), "reading a device attribute"))

    def new_stream(self) -> Stream:
        """A stream that the legacy default stream does not wait for."""
        return call(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING), "making a stream")

    def synchronize(self) -> None:
        """Wait for what :attr:`stream` has to do."""
        call(cu.cuStreamSynchronize(self.stream), "waiting for the device")

    def free_memory(self) -> int:
        """Bytes of device memory that nobody has taken."""
        return int(call(cu.cuMemGetInfo(), "reading the device's memory"))

    def total_memory(self) -> int:
        """Bytes of device memory, taken or not."""
        return int(call(cu.cuDeviceTotalMem(self.handle), "reading the device's memory"))

    def require_ordered_rdma(self) -> None:
        """Raise BlinkError where a running kernel might never see, or see in another order, what a NIC writes."""
        attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING
        if self.attribute(attribute) == 0:
            raise BlinkError(
                f"the GPU {self.name} does not order a NIC's writes for a running kernel",
                "use a GPU of compute capability 9.0 or newer for ring.transport verbs",
            )

    def kernels(
        self,
        source: str,
        names: Sequence[str],
        *,
        controls_graphs: bool = False,
        specific: bool = False,
        defines: Mapping[str, int] | None = None,
    ) -> dict[str, Kernel]:
        """The kernels ``names`` of kernels/``source`` with macros ``defines``, compiled for this device and loaded.

        ``specific``: they use instructions that only GPUs of this very architecture have ("sm_90a").
        """
        version = int(call(cu.cuDriverGetVersion(), "reading the driver's version"))
        arch = self.arch + "a" * specific
        cubin = cached_kernels(source, arch, version, self._cache, controls_graphs=controls_graphs, defines=defines)
        module = call(cu.cuModuleLoadData(cubin), f"loading kernels/{source}")
        return {n: call(cu.cuModuleGetFunction(module, n.encode()), f"kernel {n}") for n in names}


def allow_shared(kernel: Kernel, size: int) -> None:
    """Let ``kernel`` be launched with ``size`` bytes of dynamic shared memory. Raises BlinkError past the device's."""
    attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call(cu.cuFuncSetAttribute(kernel, attribute, size), f"asking for {size} bytes of shared memory")


def resident_blocks(kernel: Kernel, block: int, shared: int = 0) -> int:
    """How many blocks of ``block`` threads one multiprocessor holds at once."""
    return int(call(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, block, shared), "asking the occupancy"))


def launch(
    kernel: Kernel, grid: int | tuple[int, int, int], block: int, arguments: Sequence[Any], stream: Stream, *,
    shared: int = 0, dependent: bool = False,
) -> None:  # fmt: skip
    """Launch ``kernel``, or capture its launch. ``arguments`` are ctypes values, one for each parameter.

    ``shared`` is bytes of dynamic shared memory; more than 48 KiB need :func:`allow_shared` first. ``dependent``: the
    kernel may begin before the one in front of it on the stream has ended, and waits itself (griddepcontrol.wait)
    before it touches what that one reads or writes.
    """
    pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = (grid, 1, 1) if isinstance(grid, int) else grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes, config.hStream = shared, stream
    if dependent:
        early = cu.CUlaunchAttribute()
        early.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [early], 1
    call(cu.cuLaunchKernelEx(config, kernel, ctypes.addressof(pointers), 0), "launching a kernel")
