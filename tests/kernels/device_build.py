"""Compiling kernels/step.cu with NVRTC: needs NVIDIA's compiler library, but neither a driver nor a GPU."""

from __future__ import annotations

from pathlib import Path

from cuda.bindings import nvrtc

KERNELS = Path(__file__).parents[2] / "kernels"


def compile_step(arch: str = "sm_90") -> bytes:
    """The cubin of ``step.cu`` for ``arch``."""
    return compile_cubin((KERNELS / "step.cu").read_bytes(), arch)


def compile_cubin(source: bytes, arch: str) -> bytes:
    """The cubin of CUDA C++ ``source`` for ``arch``. Raises RuntimeError with the compiler's log."""
    err, program = nvrtc.nvrtcCreateProgram(source, b"kernel.cu", 0, [], [])
    assert err == nvrtc.nvrtcResult.NVRTC_SUCCESS, err
    try:
        options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", f"--include-path={KERNELS}".encode()]
        (err,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if err != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(log.decode())
        cubin = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)
