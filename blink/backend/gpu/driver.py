"""What turns the scheduler beside an engine on a GPU: the interface of every driver in blink/registry.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from blink.backend.gpu.assembly import Assembly
from blink.backend.readiness import OwnedRing
from blink.backend.scheduler.config import SchedulerConfig
from blink.backend.setup import Setup
from blink.gpu.cuda import Device

BYTES_PER_GRAPH = 3 << 19
"""What CUDA takes for one executable graph of some 350 kernels, rounded up (docs/performance.md)."""

R = TypeVar("R", bound=OwnedRing)


def graph_bytes(scheduling: SchedulerConfig, copies: int = 1) -> int:
    """Bytes of the GPU's memory that ``copies`` executable copies of every graph take."""
    return BYTES_PER_GRAPH * copies * sum(map(len, scheduling.buckets))


class GpuDriver(ABC, Generic[R]):
    """Turns the scheduler, configured by ``scheduling``, over a ring of its own kind and the graphs of ``assembly``.

    Everything is made with it, so that :meth:`run` cannot fail for want of memory. Raises BlinkError.
    """

    @abstractmethod
    def __init__(self, assembly: Assembly, scheduling: SchedulerConfig, ring: R, *, drain_timeout_s: float) -> None: ...

    @classmethod
    @abstractmethod
    def needs(cls, setup: Setup) -> dict[str, int]:
        """Bytes of the GPU's memory by part, ring included. Needs no GPU."""

    @classmethod
    @abstractmethod
    def open_ring(cls, device: Device, setup: Setup) -> R:
        """The ring where this driver and those who reach it can have it, unpublished. Raises BlinkError."""

    @abstractmethod
    def run(self) -> None:
        """Turn the scheduler until it says STOP. Raises BlinkError where the device fails."""

    @abstractmethod
    def stop(self) -> None:
        """Ask for the end; see :class:`blink.backend.shutdown.Stops`. A signal handler calls it."""

    @abstractmethod
    def close(self) -> None:
        """Give back what was made. It may not run."""
