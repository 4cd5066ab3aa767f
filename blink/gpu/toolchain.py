"""Compiling the kernels for a device: NVRTC, nvJitLink, and a cache of their results.

The toolchain is the Python packages', of the CUDA version that the driver of the machine runs, so no compiler is
installed there. What comes out is machine code (a cubin), never PTX: nothing is left for the driver to compile.
Neither a driver nor a device is needed, so that kernels are compiled on any machine's tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from cuda.bindings import nvjitlink, nvrtc

import blink
from blink.errors import BlinkError

CUDA_VERSION = (13, 0)
"""Of NVRTC, nvJitLink and the device runtime: that of driver branch 580, which loads no newer code."""
OPTIONS = ("--std=c++17",)
RELOCATABLE = "--relocatable-device-code=true"
_SOURCES = ("*.h", "*.cuh", "*.cu")


def kernel_folder() -> Path:
    """Where the kernels' sources are: beside the package in a checkout, else inside it. Raises BlinkError."""
    folders = [Path(blink.__file__).parents[1] / "kernels", *(Path(p) / "kernels" for p in blink.__path__)]
    for folder in folders:
        if (folder / "scheduler/scheduler.cuh").exists():
            return folder
    raise BlinkError("the kernels' sources are missing from the blink package", "install it: `pip install .`")


@cache
def source_hash() -> str:
    """SHA-256, hex, of every source and of how they are compiled."""
    digest = hashlib.sha256(repr((OPTIONS, RELOCATABLE, nvrtc.nvrtcVersion()[1:], nvjitlink.version())).encode())
    folder = kernel_folder()
    for path in sorted(p for pattern in _SOURCES for p in folder.rglob(pattern)):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def device_runtime() -> Path:
    """libcudadevrt.a, through which a kernel launches graphs. Raises BlinkError."""
    try:
        files = importlib.metadata.files("nvidia-cuda-runtime") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "libcudadevrt.a" and Path(str(file.locate())).exists():
            return Path(str(file.locate()))
    wanted = ".".join(map(str, CUDA_VERSION))
    raise BlinkError("libcudadevrt.a was not found", f"install the Python package nvidia-cuda-runtime {wanted}")


def compile_kernels(
    source: str, arch: str, *, controls_graphs: bool = False, defines: Mapping[str, int] | None = None
) -> bytes:
    """The cubin of kernels/``source`` for ``arch``. Raises BlinkError with the compiler's log.

    ``controls_graphs``: the kernels launch graphs or set their conditions, and need the device runtime linked.
    ``defines`` are macros; a source has defaults for all that it reads.
    """
    text = (kernel_folder() / source).read_bytes()
    options = [f"--define-macro={name}={value}" for name, value in sorted((defines or {}).items())]
    if not controls_graphs:
        return compile_text(text, source, arch, *options)
    return _link(compile_text(text, source, arch, RELOCATABLE, *options), source, arch)


def compile_text(text: bytes, name: str, arch: str, *options: str) -> bytes:
    """The cubin of CUDA C++ ``text``, which may include the kernels' headers. Raises BlinkError with the log."""
    _require_version()
    error, program = nvrtc.nvrtcCreateProgram(text, name.encode(), 0, [], [])
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, error
    try:
        fixed = (f"--gpu-architecture={arch}", f"--include-path={kernel_folder()}", *OPTIONS)
        every = [o.encode() for o in (*fixed, *options)]
        (error,) = nvrtc.nvrtcCompileProgram(program, len(every), every)
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytes(nvrtc.nvrtcGetProgramLogSize(program)[1])
            nvrtc.nvrtcGetProgramLog(program, log)
            said = " ".join(log.rstrip(b"\0").decode().split())
            raise BlinkError(f"kernels/{name} does not compile: {said}", "report it, it is a defect")
        cubin = bytes(nvrtc.nvrtcGetCUBINSize(program)[1])
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def cache_folder(chosen: Path | None = None) -> Path:
    """Where what is made once for this machine is kept: ``chosen``, or $XDG_CACHE_HOME/blink."""
    return chosen or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blink"


def cached_kernels(
    source: str,
    arch: str,
    driver_version: int,
    folder: Path | None = None,
    *,
    controls_graphs: bool = False,
    defines: Mapping[str, int] | None = None,
) -> bytes:
    """As :func:`compile_kernels`, from ``folder`` where it has been done before.

    An entry's name has a hash of all sources and of the toolchain, the macros, and the driver's version. Without
    ``folder`` it is :func:`cache_folder`; where that cannot be written, nothing is kept.
    """
    folder = cache_folder(folder)
    macros = "".join(f"-{name}={value}" for name, value in sorted((defines or {}).items()))
    name = source.removesuffix(".cu").replace("/", "-")
    path = folder / f"{name}{macros}-{arch}-{driver_version}-{source_hash()[:32]}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        cubin = compile_kernels(source, arch, controls_graphs=controls_graphs, defines=defines)
    with contextlib.suppress(OSError):
        keep(path, cubin)
    return cubin


def keep(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` of the cache in one step; makes its folder, for this user alone. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(content)
    draft.rename(path)


def _require_version() -> None:
    found = tuple(nvrtc.nvrtcVersion()[1:])
    if found != CUDA_VERSION:
        wanted = ".".join(map(str, CUDA_VERSION))
        raise BlinkError(
            f"NVRTC is version {found[0]}.{found[1]}, not {wanted}",
            f"install nvidia-cuda-nvrtc, nvidia-nvjitlink and nvidia-cuda-runtime {wanted}",
        )


def _link(cubin: bytes, name: str, arch: str) -> bytes:
    linker = nvjitlink.create(1, [f"-arch={arch}"])
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.CUBIN, cubin, len(cubin), name)
        nvjitlink.add_file(linker, nvjitlink.InputType.LIBRARY, str(device_runtime()))
        nvjitlink.complete(linker)
        linked = bytearray(nvjitlink.get_linked_cubin_size(linker))
        nvjitlink.get_linked_cubin(linker, linked)
        return bytes(linked)
    except nvjitlink.nvJitLinkError as e:
        log = bytearray(nvjitlink.get_error_log_size(linker))
        nvjitlink.get_error_log(linker, log)
        raise BlinkError(f"kernels/{name} does not link ({e}): {log.decode().strip()}", "report it") from None
    finally:
        nvjitlink.destroy(linker)
