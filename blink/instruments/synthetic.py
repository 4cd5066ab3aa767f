"""A whole appliance on this machine's GPU but for the model: ring, scheduler, a driver, and the synthetic engine."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from blink.backend.gpu.drivers import DRIVERS
from blink.backend.gpu.ring import CopyTransport, DeviceRing, HostRing
from blink.backend.gpu.state import DeviceScheduler
from blink.backend.scheduler.config import SchedulerConfig
from blink.engine.device.buffers import DeviceBuffers
from blink.engine.device.captured import capture_all
from blink.engine.seam.batch import Control
from blink.engine.synthetic.engine import SyntheticEngine
from blink.gpu.cuda import Device
from blink.ring.client import RingClient
from blink.ring.header import Header
from blink.ring.layout import Geometry
from blink.ring.shm import RingObjects, ShmTransport
from blink.ring.transport import Transport


class SyntheticAppliance:
    """Serves as soon as it is made, or with ``start`` false once its loop is started, until :meth:`stop`.

    :meth:`close` gives everything back. ``directory`` has the ring in shared memory; None puts it into device memory.
    ``options`` are :class:`blink.engine.synthetic.engine.SyntheticEngine`'s, ``loop_options`` the driver's.
    ``make`` makes another engine in its place.
    """

    def __init__(
        self, device: Device, driver: str, config: SchedulerConfig, geometry: Geometry, directory: Path | None,
        *, loop_options: dict[str, float] | None = None, start: bool = True,
        make: Callable[[Device, DeviceBuffers], Any] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        loop = DRIVERS[driver]
        self.config = replace(config, launch_window=loop.launch_window)
        self.geometry, self.directory, self._opened = geometry, directory, ExitStack()
        self.objects: RingObjects | None = None
        self.ring = self._open_ring(device)
        self.buffers = buffers = DeviceBuffers(device, config.dims)
        self._opened.callback(buffers.close)
        self.engine: Any = make(device, buffers) if make else SyntheticEngine(
            device, buffers, pages=config.pages, page_tokens=config.page_tokens, vocab=config.vocab, **options
        )  # fmt: skip
        self._opened.callback(self.engine.close)
        self.scheduler = DeviceScheduler(device, self.config, self.ring, buffers)
        self._opened.callback(self.scheduler.close)
        self.graphs = capture_all(device, self.engine, *config.buckets)
        self._opened.callback(self.graphs.close)
        self.loop = loop(self.scheduler, self.graphs, **(loop_options or {}))
        self._opened.callback(self.loop.close)
        if start:
            self.loop.start()
        if self.objects is not None:
            self.objects.publish()

    def _open_ring(self, device: Device) -> HostRing | DeviceRing:
        c = self.config
        limits = {
            "lanes": c.lanes, "queue_cap": c.records, "vocab": c.vocab, "max_context": c.max_context,
            "ext_words": c.ext_words, "page_tokens": c.page_tokens, "pages": c.pages, "fingerprint": bytes(32),
        }  # fmt: skip
        if self.directory is None:
            ring = DeviceRing(device, Header(self.geometry, secrets.randbits(63) + 1, **limits))  # type: ignore[arg-type]
            self._opened.callback(ring.close)
            return ring
        self.objects = RingObjects.create(self.directory, self.geometry, **limits)  # type: ignore[arg-type]
        self._opened.callback(self.objects.close)
        self._opened.callback(self.objects.unlink)
        host = HostRing(self.objects)
        self._opened.callback(host.close)
        return host

    def transport(self, partition: int) -> Transport:
        """A worker's link: shared memory, or copies where the ring is in device memory."""
        if isinstance(self.ring, DeviceRing):
            return CopyTransport(self.ring, partition)
        assert self.directory is not None
        return ShmTransport(self.directory, partition)

    def client(self, partition: int) -> RingClient:
        """A worker's client."""
        return RingClient(self.transport(partition))

    def write_f(self, partition: int, content: bytes) -> None:
        """Replace all of F of ``partition``: for a worker that keeps to nothing."""
        at = partition * self.geometry.f_stride
        if isinstance(self.ring, DeviceRing):
            self.ring.f_memory.write(at, content)
        elif self.objects is not None:
            self.objects.f[at : at + len(content)] = memoryview(content)

    def stop(self, control: Control = Control.DRAIN, timeout_s: float = 30) -> None:
        """Ask for the end and wait for it. Raises BlinkError after ``timeout_s``."""
        self.scheduler.request(control)
        self.loop.join(timeout_s)

    def close(self) -> None:
        """Give everything back. The loop must have ended."""
        self._opened.close()
