"""What a measurement ran on, printed with every figure."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from blink.release import release_id

BUSY_LOAD_PER_CORE = 0.25


def hardware() -> dict[str, str]:
    """CPU model, usable cores, memory and load average of this machine."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.split(":")[0].strip() in ("model name", "Model", "CPU part"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "architecture": platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**30:.1f} GiB",
        "load average": " ".join(f"{x:.2f}" for x in os.getloadavg()),
        "kernel": platform.release(),
    }


def versions() -> dict[str, str]:
    """Versions of Blink, Python, and the packages that do the work."""
    found = {"blink": f"{version('blink-serve')} release {release_id()}", "python": platform.python_version()}
    for package in ("numpy", "tokenizers", "uvicorn", "uvloop", "httptools", "httpx"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def busy_warning() -> str | None:
    """A warning where other work runs on this machine, which makes every figure a lower bound."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load / cores <= BUSY_LOAD_PER_CORE:
        return None
    return f"the machine is busy (load {load:.2f} on {cores} cores before the run): the figures are too low"
