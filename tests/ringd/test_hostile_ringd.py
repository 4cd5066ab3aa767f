"""Whatever answers at ringd's address, a frontend says why it has no link, goes on asking, and leaks nothing."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from blink.release import running_release
from blink.ring import handshake as hs
from blink.ring.client import RingClient
from blink.ring.keys import KeyRing
from blink.ring.layout import PAGE
from blink.ring.transport import LinkState
from blink.ring.verbs.attempt import PAUSE_S
from blink.ring.verbs.connection import Request
from blink.ringd.registration import RegisteredRing
from tests.appliance import wait_for
from tests.ringd.host import HOLDER, Host, host, scheduler, settle

Talk = Callable[[socket.socket], None]


@contextmanager
def stranger(talk: Talk) -> Iterator[int]:
    """A server of one connection after the other; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError, hs.HandshakeError):
                    connection.settimeout(5)
                    talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def take(connection: socket.socket, expected: hs.Frame) -> bytes:
    """The body of the frame that the frontend sends next."""
    _, length = hs.parse_head(connection.recv(hs.HEAD_SIZE, socket.MSG_WAITALL), expected)
    return connection.recv(length, socket.MSG_WAITALL)


def bent(rng: random.Random, good: bytes) -> bytes:
    """``good`` with bytes changed, left out, put in and cut off, or noise."""
    if rng.random() < 0.2:
        return rng.randbytes(rng.randint(0, 1100))
    data = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
    return bytes(data[: rng.randint(0, len(data))])


@pytest.mark.parametrize("region", range(3), ids="HGF")
@pytest.mark.parametrize("length", [0, 4, PAGE])
def test_a_region_shorter_than_the_ring_needs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, region: int, length: int
) -> None:
    """ringd has the key and is wrong: a frontend says so instead of reading beyond what it was given."""
    regions = RegisteredRing.regions

    def shortened(self: RegisteredRing, access: hs.Access, partition: int) -> tuple[hs.RemoteRegion, ...]:
        given = list(regions(self, access, partition))
        given[region] = replace(given[region], length=length)
        return tuple(given)

    monkeypatch.setattr(RegisteredRing, "regions", shortened)
    with scheduler(tmp_path / "ring"), host(tmp_path) as h:
        h.announce(tmp_path / "ring")
        client = RingClient(h.transport())

        def up_or(said: str) -> bool:
            assert client.poll(time.monotonic()) == []
            return client.health().link_up or said in client.health().down

        enough = region == 0 and length == PAGE
        says = "bytes at the other end" if length == PAGE else "regions that are too short"
        wait_for("the refusal", lambda: up_or(says), 20)
        assert client.health().link_up == enough, client.health().down
        client.close()


def test_no_bytes_break_a_frontend(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer with the key and one without, that bend a frame of the handshake or leave in the middle of it."""
    monkeypatch.setattr("blink.ring.verbs.attempt.PAUSE_S", PAUSE_S / 50)
    h, rng = Host(tmp_path), random.Random(6)
    endpoint = hs.Endpoint(bytes(16), 1024, 1, 1, ((1, 1), (2, 2), (3, 3)))
    regions = tuple(hs.RemoteRegion(4096, 4096, 1) for _ in hs.REGIONS)

    def talk(connection: socket.socket) -> None:
        exchange, broken = hs.ServerHandshake(KeyRing(h.rdma.key_file, None)), rng.randrange(3)
        challenge = exchange.challenge(take(connection, hs.Frame.HELLO))
        connection.sendall(challenge if broken else bent(rng, challenge))
        if broken:
            exchange.offer(take(connection, hs.Frame.OFFER))
            answer, _ = exchange.answer(hs.Answer(1, running_release().encode(), endpoint, regions))
            connection.sendall(bent(rng, answer if broken == 1 else hs.refusal("no")))

    try:
        with stranger(talk) as port:
            transport = h.transport()
            lost = h.rdma.model_copy(update={"ringd_port": port, "handshake_timeout_s": 0.5})
            transport._request = Request(lost, hs.Access.WORKER, 0, HOLDER)
            said = set()
            for _ in range(60):
                transport.reconnect()
                assert settle(transport) is LinkState.DOWN
                assert transport.detail.startswith(f"blink-ringd at 127.0.0.1 port {port}")
                said.add(transport.detail)
            assert len(said) >= 5
            transport.close()
        assert "connecting to the ring failed" not in caplog.text  # what a defect logs
        wait_for("the attempts to end", lambda: h.network.open == {"device": 1, "domain": 0, "memory": 0, "qp": 0})
    finally:
        h.close()
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
