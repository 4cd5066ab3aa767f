"""``blink ringd``: own the ring's registrations and queue pairs, apart from the backend, which may be stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable

from blink.config import ApplianceConfig, RdmaConfig
from blink.errors import BlinkError
from blink.notify import notify
from blink.ring.announce import SOCKET
from blink.ring.verbs.device import Device
from blink.ring.verbs.fabric import Fabric
from blink.ringd.frontends import Frontends
from blink.ringd.intake import Announcement, Intake
from blink.ringd.registration import RegisteredRing

LAST_WORDS_S = 1.0  # how long a ring can be read after its backend ended: frontends fetch the ends of their requests

log = logging.getLogger("blink.ringd")


def main(config: ApplianceConfig, open_fabric: Callable[[RdmaConfig], Fabric] = Device) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Raises BlinkError where this machine cannot."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s blink ringd: %(message)s")
    if config.rdma is None:
        raise BlinkError("the configuration has no section rdma", "set ring.transport to verbs and write it")
    fabric = open_fabric(config.rdma)
    try:
        asyncio.run(_serve(config, config.rdma, fabric))
    finally:
        fabric.close()
    log.info("stopped")
    return 0


async def _serve(config: ApplianceConfig, rdma: RdmaConfig, fabric: Fabric) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    daemon = Daemon(config, rdma, fabric)
    try:
        await daemon.listen()
        log.info("listening on %s port %d", rdma.ringd_address, rdma.ringd_port)
        notify(READY="1", STATUS="no ring yet")
        await stop.wait()
        notify(STOPPING="1")
    finally:
        await daemon.close()


class Daemon:
    """Joins what the backend announces with the frontends that ask for it."""

    def __init__(self, config: ApplianceConfig, rdma: RdmaConfig, fabric: Fabric) -> None:
        self._fabric = fabric
        self._ring: RegisteredRing | None = None
        self._ending: RegisteredRing | None = None
        self._owner: Announcement | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._frontends = Frontends(rdma, lambda: self._ring)
        self._intake = Intake(config.instance.run_dir / SOCKET, rdma.backend_user, self._arrived, self._ended)

    async def listen(self) -> None:
        """Begin to serve both sides. Raises BlinkError."""
        await self._frontends.listen()
        self._intake.listen()

    def _arrived(self, announcement: Announcement) -> None:
        """Register a ring, in the place of one that is still there."""
        self._end("the backend was restarted")
        self._forget()
        a = announcement
        self._ring = RegisteredRing(self._fabric, a.header, a.g_fd, a.f_fd, a.kind)
        self._owner = announcement
        geometry = a.header.geometry
        log.info(
            "ring %016x of process %d: %d partitions, %d bytes", a.header.epoch, a.pid, geometry.parts,
            geometry.g_bytes + geometry.f_bytes,
        )  # fmt: skip
        notify(STATUS=f"ring {a.header.epoch:016x}")

    def _ended(self, announcement: Announcement) -> None:
        if announcement is self._owner:
            self._end(f"backend not up: process {announcement.pid}, which made the ring, has ended")
            self._timer = asyncio.get_running_loop().call_later(LAST_WORDS_S, self._forget)

    def _end(self, why: str) -> None:
        """Nobody connects to the ring any more; who is connected reads its last words."""
        if self._ring is not None:
            log.info("ring %016x: %s", self._ring.header.epoch, why)
            notify(STATUS=why)
            self._ending, self._ring, self._owner = self._ring, None, None
            self._frontends.end_ring(why)

    def _forget(self) -> None:
        """Destroy the queue pairs of the ring that ends, and deregister it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ending is not None:
            self._frontends.drop()
            self._ending.close()
            self._ending = None

    async def close(self) -> None:
        """Give everything back."""
        self._owner = None  # the end of its connection is ours
        self._intake.close()
        await self._frontends.close()
        self._ending = self._ending or self._ring
        self._ring = None
        self._forget()
