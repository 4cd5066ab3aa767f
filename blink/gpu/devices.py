"""The machine's CUDA devices: finding the one that a configuration names."""

from __future__ import annotations

from pathlib import Path

from cuda.bindings import driver as cu

from blink.errors import BlinkError
from blink.gpu.cuda import call, initialize

_DRIVER_VERSION = Path("/sys/module/nvidia/version")


def ordinal_of(which: int | str) -> int:
    """The number that CUDA has for a GPU, named by that number or by its UUID ("GPU-…").

    Raises BlinkError where there is no driver, no such device, or where it is a MIG instance, which has too few
    multiprocessors and too little memory for what its parent's name promises.
    """
    names = visible_devices()
    chosen = which if isinstance(which, int) else next((i for i, n in enumerate(names) if n.endswith(which)), -1)
    if not 0 <= chosen < len(names):
        raise BlinkError(
            f"engine.device {which}: this machine's CUDA devices are {'; '.join(names) or 'none'}",
            "name one of them, by number or UUID; CUDA_VISIBLE_DEVICES hides those it does not list",
        )
    if " MIG " in names[chosen]:
        raise BlinkError(
            f"engine.device {which} is a MIG instance: {names[chosen]}",
            "serve from a whole GPU: `nvidia-smi -i N -mig 0`, or name another device",
        )
    return chosen


def visible_devices() -> list[str]:
    """Number, name and UUID of each CUDA device. Raises BlinkError where there is no driver or no device."""
    initialize()
    count = int(call(cu.cuDeviceGetCount(), "counting CUDA devices"))
    return [_describe(i) for i in range(count)]


def _describe(ordinal: int) -> str:
    handle = call(cu.cuDeviceGet(ordinal), f"CUDA device {ordinal}")
    name = call(cu.cuDeviceGetName(128, handle), "a device's name").split(b"\0")[0].decode()
    return f"{ordinal} {name} {uuid_of(handle)}"


def uuid_of(handle: object) -> str:
    """The UUID of a device, as nvidia-smi prints it."""
    digits = bytes(call(cu.cuDeviceGetUuid(handle), "a device's UUID").bytes).hex()
    return "GPU-" + "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


def driver_version() -> str:
    """Version of the kernel's driver such as "580.159.04", or of CUDA where that cannot be read."""
    try:
        return _DRIVER_VERSION.read_text().strip()
    except OSError:
        return f"CUDA {call(cu.cuDriverGetVersion(), 'reading the driver version')}"
