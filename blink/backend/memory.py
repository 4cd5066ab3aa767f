"""Whether an appliance fits this machine, decided before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blink.errors import BlinkError

MIB = 1 << 20


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of each part of a backend, by name; a name says which setting makes the part smaller."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Sum of all parts, in bytes."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        terms = " + ".join(f"{name} {_mib(size)}" for name, size in self.parts.items())
        return f"{terms} = {_mib(self.total)}"

    def require(self, available: int, where: str = "") -> None:
        """Raise BlinkError, with the sum, where the plan exceeds ``available`` bytes. ``where`` names the memory."""
        missing, pages = self.total - available, self.parts.get("engine.pages", 0)
        if missing > 0:
            share = f" by {-(-100 * missing // pages)} %" if missing < pages else ""
            raise BlinkError(
                f"this configuration needs {self}, and {_mib(available)} are available{where}",
                f"lower engine.pages{share}, engine.lanes or the ring's arenas, choose a smaller model, or free memory",
            )


def require_room(ring_dir: Path, needed: int) -> None:
    """Raise BlinkError where the file system of ``ring_dir`` has fewer than ``needed`` bytes free."""
    stat = os.statvfs(ring_dir)
    free = stat.f_bavail * stat.f_frsize
    if needed > free:
        raise BlinkError(
            f"instance.ring_dir {ring_dir}: the ring needs {_mib(needed)}, and its file system has {_mib(free)} free",
            "enlarge that tmpfs, remove what fills it, or lower ring.input_mib, ring.output_mib or ring.partitions",
        )


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes this process may still take: MemAvailable, or less where a cgroup (version 2) above it has a limit."""
    fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for line in (proc / "self/cgroup").read_text().splitlines():
        hierarchy, _, path = line.split(":", 2)
        if hierarchy != "0":
            continue
        group = cgroups / path.lstrip("/")
        while group != cgroups and cgroups in group.parents:
            available = min(available, _headroom(group))
            group = group.parent
        available = min(available, _headroom(cgroups))
    return max(available, 0)


def _headroom(group: Path) -> int:
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return 1 << 62
        # Page cache counts as used but is given back before anything is killed.
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(limit) - int((group / "memory.current").read_text()) + int(stat.get("inactive_file", 0))
    except OSError:
        return 1 << 62


def _mib(size: int) -> str:
    return f"{-(-size // MIB)} MiB"
