"""A whole appliance on this machine's GPU but for the model: ring, scheduler, a driver, and the synthetic engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from blink.backend.gpu.assembly import Assembly
from blink.backend.gpu.resident import ResidentDriver
from blink.backend.gpu.ring import DeviceRing, MappedRing, RingForDevice
from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.device.buffers import DeviceBuffers
from blink.engine.seam.batch import Control
from blink.engine.synthetic.engine import SyntheticEngine
from blink.gpu.cuda import Device
from blink.instruments.copy_transport import CopyTransport
from blink.registry import driver_named
from blink.ring.client import RingClient
from blink.ring.layout import Geometry
from blink.ring.shm import RingObjects, ShmTransport
from blink.ring.transport import Transport

DRAIN_TIMEOUT_S = 5.0


class SyntheticAppliance:
    """Serves as soon as it is made, or with ``start`` false once its loop is started, until :meth:`stop`.

    :meth:`close` gives everything back. ``driver`` is one of those on the device; ``idle`` are its options.
    ``directory`` has the ring in shared memory; None puts it into device memory. ``options`` are
    :class:`blink.engine.synthetic.engine.SyntheticEngine`'s; ``make`` makes another engine in its place.

    ``assembly`` and ``driver`` are the backend's own parts; ``engine``, ``buffers``, ``graphs``, ``scheduler`` and
    ``loop`` are theirs. ``objects`` is the ring in shared memory, or None.
    """

    def __init__(
        self, device: Device, driver: str, config: SchedulerConfig, geometry: Geometry, directory: Path | None,
        *, idle: dict[str, float] | None = None, start: bool = True,
        make: Callable[[Device, DeviceBuffers], Any] | None = None, drain_timeout_s: float = DRAIN_TIMEOUT_S,
        **options: Any,
    ) -> None:  # fmt: skip
        self.config, self.geometry = config, geometry
        self._opened = ExitStack()
        self.objects: RingObjects | None = None
        self.transport: Callable[[int], Transport]
        """A worker's link to its partition: shared memory, or copies where the ring is in device memory."""
        self.ring = self._open_ring(device, directory)

        def synthetic(on: Device, buffers: DeviceBuffers) -> SyntheticEngine:
            return SyntheticEngine(
                on, buffers, pages=config.pages, page_tokens=config.page_tokens, vocab=config.vocab, **options
            )

        self.assembly = Assembly(device, config, make or synthetic)
        self._opened.callback(self.assembly.close)
        self.engine: Any = self.assembly.engine
        self.buffers, self.graphs = self.assembly.buffers, self.assembly.graphs
        made: ResidentDriver = driver_named(driver)(
            self.assembly, config, self.ring, drain_timeout_s=drain_timeout_s, **(idle or {})
        )
        self._opened.callback(made.close)
        self.driver, self.scheduler, self.loop = made, made.scheduler, made.loop
        if start:
            self.loop.start()
        self.ring.publish()

    def _open_ring(self, device: Device, directory: Path | None) -> RingForDevice:
        header = self.config.header(self.geometry, queue_cap=self.config.records, fingerprint=bytes(32))
        if directory is None:
            in_device = DeviceRing(device, header)
            self._opened.callback(in_device.close)
            self.transport = lambda partition: CopyTransport(in_device, partition)
            return in_device
        self.objects = RingObjects(directory, header)
        mapped = MappedRing(self.objects)
        self._opened.callback(mapped.close)
        self._opened.callback(self.objects.unlink)
        self.transport = lambda partition: ShmTransport(directory, partition)
        return mapped

    def client(self, partition: int) -> RingClient:
        """A worker's client."""
        return RingClient(self.transport(partition))

    def stop(self, control: Control = Control.DRAIN, timeout_s: float = 30) -> None:
        """Ask for the end and wait for it. Raises BlinkError after ``timeout_s``."""
        self.scheduler.request(control)
        self.loop.join(timeout_s)

    def close(self) -> None:
        """Give everything back. The loop must have ended."""
        self._opened.close()
