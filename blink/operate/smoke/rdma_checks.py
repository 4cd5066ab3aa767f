"""Checks of the link over RDMA: device and port, handshake, round trips, and the order of payload and doorbell."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from blink.operate.smoke.check import Check, CheckError, Deadline
from blink.operate.smoke.context import Context
from blink.ring.layout import HEADER, STATUS
from blink.ring.transport import Channel, LinkState, Region
from blink.ring.verbs.device import Device
from blink.ring.verbs.transport import VerbsTransport
from blink.ring_access import open_transport

ROUND_TRIPS = 200
PAYLOAD = 1024
ROUND_S = 0.02  # time allowed for a round of the ordering check
STUCK = "the link is cut or very slow: `rdma link`, `ip -s link`, and blink-ringd's log"


def device(context: Context, deadline: Deadline) -> str:
    """The configured device, port and GID of this machine can be used."""
    config = context.config.rdma
    assert config is not None
    deadline.left("the RDMA device")
    found = Device(config)
    try:
        limits = found.limits
        return (
            f"{found.name} port {found.port} active, MTU {limits.mtu}, GID {found.gid_index} is {found.address}, "
            f"{limits.initiator} reads in flight"
        )
    finally:
        found.close()


def handshake(context: Context, deadline: Deadline) -> str:
    """blink-ringd answers, has the key, and gives queue pairs to the operator's partition."""
    start = time.monotonic()
    with _link(context, deadline) as transport:
        connection = transport.connection
        if connection is None:
            raise CheckError(transport.detail, "the link broke right after the handshake: see blink-ringd's log")
        answer, mtu = connection.answer, min(connection.local.mtu, connection.answer.endpoint.mtu)
        epoch = int.from_bytes(_read(transport, Region.H, HEADER.offset("epoch"), 8, deadline), "little")
    if epoch != answer.epoch:
        raise CheckError(
            f"blink-ringd registered ring {answer.epoch:016x}, and its memory says {epoch:016x}",
            "the registration is of another ring: restart blink-ringd",
        )
    return (
        f"{connection.local.address} to {answer.endpoint.address}, path MTU {mtu}, ring {epoch:016x}, "
        f"{1000 * (time.monotonic() - start):.0f} ms"
    )


def round_trips(context: Context, deadline: Deadline) -> str:
    """Writes and reads come back; prints how long they take."""
    geometry = context.config.ring.geometry()
    slab = geometry.status_off + STATUS.size * geometry.slots_per_part
    data = secrets.token_bytes(64)
    with _link(context, deadline) as transport:
        parts = [
            f"{name} p50 {times[len(times) // 2]:.0f} us, p99 {times[len(times) * 99 // 100]:.0f} us"
            for name, times in (
                ("write 64 B", _times(lambda: _write(transport, [(geometry.in_off, data)], deadline))),
                ("read 64 B", _times(lambda: _read(transport, Region.G, 0, 64, deadline))),
                (f"read {slab} B", _times(lambda: _read(transport, Region.G, 0, slab, deadline))),
            )
        ]
        if _read(transport, Region.F, geometry.in_off, 64, deadline) != data:
            raise CheckError("what was written is not what is read", "two writers share this partition")
    return ", ".join(parts)


def ordering(context: Context, deadline: Deadline) -> str:
    """What a doorbell covers is there when the doorbell is, as another queue pair sees it; rounds are settable.

    Each round writes a payload, waits for its completion, writes a doorbell word, and reads both in one go.
    """
    rounds, at = context.rounds, context.config.ring.geometry().in_off
    bell = at + PAYLOAD
    with _link(context, deadline) as transport:
        _write(transport, [(bell, bytes(8))], deadline)
        for number in range(1, rounds + 1):
            word = number.to_bytes(8, "little")
            payload = word * (PAYLOAD // 8)
            _write(transport, [(at, payload)], deadline)
            ticket = transport.post_write([(bell, word)])
            # On another queue pair, beside the doorbell: it may see the old bell or the new, but all of the payload.
            read = transport.post_read(Region.F, at, PAYLOAD + 8, Channel.TOKENS)
            seen = _finish(transport, read, deadline, also=ticket)
            if seen[:PAYLOAD] != payload:
                missing = sum(a != b for a, b in zip(seen, payload, strict=False))
                rung = "and its doorbell is there" if seen[PAYLOAD:] == word else "before its doorbell"
                raise CheckError(
                    f"in round {number} {missing} bytes of a completed write are missing, {rung}",
                    "completions come before the data: relaxed ordering on the path, or a broken device",
                )
    return f"{rounds} rounds of {PAYLOAD} bytes and a doorbell"


def _times(operation: Callable[[], object]) -> list[float]:
    """Sorted times of ROUND_TRIPS operations in us."""
    times = []
    for _ in range(ROUND_TRIPS):
        start = time.perf_counter()
        operation()
        times.append(1e6 * (time.perf_counter() - start))
    return sorted(times)


@contextmanager
def _link(context: Context, deadline: Deadline) -> Iterator[VerbsTransport]:
    """A connection of the operator's partition."""
    transport = open_transport(context.config, context.lease.partition)
    assert isinstance(transport, VerbsTransport)
    try:
        transport.reconnect()
        while transport.state is LinkState.CONNECTING:
            deadline.left(f"the handshake ({transport.detail})")
            time.sleep(0.002)
        if transport.state is not LinkState.UP:
            raise CheckError(transport.detail, "see blink-ringd's log, which names this frontend")
        yield transport
    finally:
        transport.close()


def _write(transport: VerbsTransport, writes: list[tuple[int, bytes]], deadline: Deadline) -> None:
    _finish(transport, transport.post_write(writes), deadline)


def _read(transport: VerbsTransport, region: Region, offset: int, length: int, deadline: Deadline) -> bytes:
    return _finish(transport, transport.post_read(region, offset, length), deadline)


def _finish(transport: VerbsTransport, ticket: int, deadline: Deadline, *, also: int | None = None) -> bytes:
    """The bytes of ``ticket`` once it, and ``also``, have completed."""
    data, waiting = b"", {ticket, also} - {None}
    while waiting and transport.state is LinkState.UP:
        for done in transport.poll():
            waiting.discard(done.ticket)
            if done.ticket == ticket and done.data is not None:
                data = done.data.tobytes()
        deadline.left("the completion of an RDMA operation")
    if waiting:
        raise CheckError(transport.detail, STUCK)
    return data


CHECKS = (
    Check[Context]("rdma-device", "device", "device, port, GID and MTU of this machine", 10, STUCK, device),
    Check[Context]("rdma-handshake", "ringd", "blink-ringd answers and has the ring", 20, STUCK, handshake),
    Check[Context]("rdma-latency", "link", "writes and reads come back, and how fast", 60, STUCK, round_trips),
    Check[Context]("rdma-order", "link", "no doorbell is visible before its payload", 120, STUCK, ordering),
)
