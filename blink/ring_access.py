"""How a configuration says that the ring is reached: the one place that knows all transports."""

from __future__ import annotations

import os
import secrets
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from blink.config import ApplianceConfig
from blink.errors import BlinkError
from blink.ring.announce import AnnouncedRing, Announcer
from blink.ring.shm import ShmTransport
from blink.ring.transport import Transport

HOLDER = "ring-holder"  # in instance.run_dir
HOLDER_BYTES = 16


def open_transport(config: ApplianceConfig, partition: int, *, observe: bool = False) -> Transport:
    """A transport for ``partition``, not yet connected.

    An observer reads the header and G_p, and needs no lease; one that may write needs the lease of the partition.
    Raises BlinkError where this machine lacks what the transport needs.
    """
    if config.ring.transport == "shm":
        return ShmTransport(config.instance.ring_dir, partition)
    from blink.ring.handshake import Access  # noqa: PLC0415 - only machines with RDMA have what these import
    from blink.ring.verbs.binding import verbs  # noqa: PLC0415
    from blink.ring.verbs.connection import Request  # noqa: PLC0415
    from blink.ring.verbs.device import Device  # noqa: PLC0415
    from blink.ring.verbs.transport import VerbsTransport  # noqa: PLC0415

    verbs()
    rdma = config.rdma
    assert rdma is not None  # checked by the configuration
    access = Access.OBSERVER if observe else Access.WORKER
    request = Request(rdma, access, partition, holder_id(config.instance.run_dir))
    return VerbsTransport(request, lambda: Device(rdma))


def announced(config: ApplianceConfig, ring: AnnouncedRing) -> AbstractContextManager[object]:
    """Within the block blink-ringd has ``ring``, where the transport needs that."""
    return nullcontext() if config.ring.transport == "shm" else Announcer(config.instance.run_dir, ring)


def holder_id(run_dir: Path) -> bytes:
    """Who this frontend is for blink-ringd: a random number, made once, of the folder that its leases are in.

    A process that has a partition's lease there may take the partition over from its predecessor. Raises BlinkError.
    """
    path = run_dir / HOLDER
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{HOLDER}.{secrets.token_hex(4)}")
        if not path.exists():
            temporary.write_bytes(secrets.token_bytes(HOLDER_BYTES))
            try:
                os.link(temporary, path)  # of several workers that start together, one succeeds
            except FileExistsError:
                pass
            finally:
                temporary.unlink()
        holder = path.read_bytes()
    except OSError as e:
        raise BlinkError(f"{path}: {e.strerror}", "make instance.run_dir writable for the frontend") from None
    if len(holder) != HOLDER_BYTES:
        raise BlinkError(f"{path} is damaged", "remove it")
    return holder
