"""The drivers by name. docs/performance.md has the figures that chose the default."""

from __future__ import annotations

from blink.backend.gpu.conditional import ConditionalLoop
from blink.backend.gpu.loop import GpuLoop
from blink.backend.gpu.persistent import PersistentLoop

DRIVERS: dict[str, type[GpuLoop]] = {"conditional": ConditionalLoop, "persistent": PersistentLoop}
DEFAULT = "conditional"
