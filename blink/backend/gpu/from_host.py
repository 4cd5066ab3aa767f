"""The scheduler on a CPU thread beside an engine on a GPU, which launches every step: for comparison."""

from __future__ import annotations

from blink.backend.gpu.assembly import Assembly
from blink.backend.gpu.driver import GpuDriver, graph_bytes
from blink.backend.host_loop import HostLoop
from blink.backend.scheduler.config import SchedulerConfig
from blink.backend.scheduler.host import Scheduler
from blink.backend.setup import Setup
from blink.gpu.cuda import Device
from blink.ring.shm import RingObjects


class HostDriver(GpuDriver[RingObjects]):
    """A :class:`HostLoop` over captured steps. Its ring is in host memory, whatever the transport."""

    def __init__(
        self, assembly: Assembly, scheduling: SchedulerConfig, ring: RingObjects, *, drain_timeout_s: float
    ) -> None:
        hosted = assembly.hosted
        hosted.instantiate_all()
        scheduler = Scheduler(scheduling, ring.geometry, ring.g, ring.f, hosted.buffers)
        self._loop = HostLoop(scheduler, hosted, drain_timeout_s=drain_timeout_s)

    @classmethod
    def needs(cls, setup: Setup) -> dict[str, int]:
        """See :meth:`GpuDriver.needs`."""
        return {"graphs": graph_bytes(setup.scheduling)}

    @classmethod
    def open_ring(cls, device: Device, setup: Setup) -> RingObjects:
        """See :meth:`GpuDriver.open_ring`."""
        return setup.shared_ring()

    def run(self) -> None:
        """See :meth:`GpuDriver.run`."""
        self._loop.run()

    def stop(self) -> None:
        """See :meth:`GpuDriver.stop`."""
        self._loop.stop()

    def close(self) -> None:
        """See :meth:`GpuDriver.close`; the graphs are the assembly's."""
