"""What ringd does with those who connect: who gets in, who is turned away, and what neither changes."""

from __future__ import annotations

import logging
import random
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from blink.release import running_release
from blink.ring import handshake as hs
from blink.ring.keys import Key, read_key
from blink.ring.layout import HEADER, PAGE, Geometry
from blink.ring.shm import RingObjects
from blink.ring.transport import LinkState, Region
from blink.ring.verbs import connection as verbs_connection
from blink.ring.verbs.connection import Connection, Request, Wire
from blink.ringd.leases import MAX_OBSERVERS
from tests.appliance import wait_for
from tests.ring.objects import ring_objects
from tests.ringd.host import HOLDER, Host, connected, finish, host, read, settle, write_key
from tests.ringd.simulated import SimFabric

GEOMETRY = Geometry(64, 2, 1 << 16, 1 << 16)
LIMITS = {
    "lanes": 4, "queue_cap": 16, "vocab": 997, "max_context": 256, "ext_words": 8, "page_tokens": 8, "pages": 64
}  # fmt: skip


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingObjects]:
    objects = ring_objects(tmp_path / "ring", GEOMETRY, fingerprint=bytes(32), **LIMITS)
    objects.publish()
    yield objects
    objects.close()


@pytest.fixture
def served(tmp_path: Path, ring: RingObjects) -> Iterator[Host]:
    with host(tmp_path) as h:
        h.announce(tmp_path / "ring")
        yield h


def magic(transport: object) -> bytes | None:
    """The ring's magic, read through ``transport``."""
    return read(transport, Region.H, 0, 8)  # type: ignore[arg-type]


def complaints(caplog: pytest.LogCaptureFixture) -> str:
    """What ringd has logged."""
    return "\n".join(r.getMessage() for r in caplog.records if r.name == "blink.ringd")


def test_a_worker_reads_and_writes_its_partition_and_no_other(served: Host, ring: RingObjects) -> None:
    transport = connected(served.transport(1))
    assert finish(transport, transport.post_write([(GEOMETRY.in_off, b"in partition one")])) == b""
    at = GEOMETRY.f_stride + GEOMETRY.in_off
    assert ring.f[at : at + 16].tobytes() == b"in partition one"
    assert not ring.f[: GEOMETRY.f_stride].any()
    ring.g[GEOMETRY.g_off + GEOMETRY.g_stride + 8] = 77
    assert read(transport, Region.G, 8, 8) == bytes((77, 0, 0, 0, 0, 0, 0, 0))
    for region, size in ((Region.H, PAGE), (Region.G, GEOMETRY.g_stride), (Region.F, GEOMETRY.f_stride)):
        with pytest.raises(ValueError, match="outside it"):
            transport.post_read(region, size - 4, 8)
    with pytest.raises(ValueError, match="outside it"):
        transport.post_write([(GEOMETRY.f_stride, bytes(8))])
    transport.close()


@pytest.mark.parametrize("region", [Region.H, Region.G])
def test_the_device_refuses_writes_to_what_the_scheduler_writes(
    served: Host, region: Region, ring: RingObjects
) -> None:
    transport = connected(served.transport())
    connection = transport.connection
    assert connection is not None
    assert connection.writes is not None
    place = connection.region(region)
    connection.writes.write([(place.address, bytes(8))], place.rkey, 99)
    assert finish(transport, 99) is None
    assert "refused access to the ring" in transport.detail
    assert ring.g[HEADER.offset("magic")] != 0
    transport.close()


def test_an_observer_reads_beside_a_worker_and_cannot_write(served: Host) -> None:
    worker, observer = connected(served.transport()), connected(served.transport(access=hs.Access.OBSERVER))
    assert magic(observer) == magic(worker) == b"BLNKRNG1"
    with pytest.raises(ValueError, match="outside it"):
        observer.post_write([(0, bytes(8))])
    with pytest.raises(ValueError, match="outside it"):
        observer.post_read(Region.F, 0, 8)
    observer.close()
    worker.close()


def test_observers_are_limited(served: Host) -> None:
    observers = [connected(served.transport(access=hs.Access.OBSERVER)) for _ in range(MAX_OBSERVERS)]
    late = served.transport(access=hs.Access.OBSERVER)
    late.reconnect()
    assert settle(late) is LinkState.DOWN
    assert f"{MAX_OBSERVERS} observers are connected already" in late.detail
    for transport in (*observers, late):
        transport.close()


# Leases


def test_a_second_frontend_is_refused_while_the_lease_lives(served: Host) -> None:
    first, second = connected(served.transport()), served.transport(holder=secrets.token_bytes(16))
    second.reconnect()
    assert settle(second) is LinkState.DOWN
    assert "partition 0 is in use by the frontend at 127.0.0.1" in second.detail
    assert magic(first) == b"BLNKRNG1", "the refusal disturbed the holder"
    first.close()
    wait_for("the lease to end", lambda: served.sessions() == 0)
    connected(second).close()


def test_a_restarted_frontend_takes_over_and_its_old_queue_pairs_are_gone_first(served: Host) -> None:
    old = connected(served.transport())
    connection = old.connection
    assert connection is not None
    answered = {number for number, _ in connection.answer.endpoint.qps}
    new = connected(served.transport())
    assert not answered & set(served.network.qps), "an old queue pair survived the handshake"
    assert old.poll() == []
    assert finish(old, old.post_write([(0, bytes(8))])) is None
    assert old.state is LinkState.DOWN
    assert magic(new) == b"BLNKRNG1"
    old.close()
    new.close()


def test_the_old_connection_is_told_who_took_over(served: Host) -> None:
    old, new = connected(served.transport()), connected(served.transport())
    # Nothing is posted, so that it learns of it by the notice alone.
    wait_for("the notice", lambda: old.poll() == [] and old.state is LinkState.DOWN)
    assert "the partition was taken over by the same frontend at 127.0.0.1" in old.detail
    old.close()
    new.close()


def test_partitions_are_independent(served: Host) -> None:
    zero, one = connected(served.transport(0)), connected(served.transport(1, holder=secrets.token_bytes(16)))
    zero.close()
    assert magic(one) == b"BLNKRNG1"
    one.close()


def test_a_partition_that_the_ring_does_not_have(served: Host) -> None:
    transport = served.transport(5)
    transport.reconnect()
    assert settle(transport) is LinkState.DOWN
    assert "partition 5 of a ring with 2 partitions" in transport.detail
    transport.close()


def test_a_frontend_that_vanishes_gives_its_partition_back(served: Host) -> None:
    """Its kernel closes the connection of a killed process; nothing else has to say so."""
    transport = connected(served.transport())
    assert transport.connection is not None
    transport.connection.lease.close()
    wait_for("the fence", lambda: served.sessions() == 0)
    assert read(transport, Region.H, 0, 8) is None, "its queue pairs still answer"
    transport.close()


# Releases


def test_another_release_is_refused_by_name_and_disturbs_nobody(
    served: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both halves flip or neither: also an observer, and the very holder of the partition, which keeps its lease."""
    good = connected(served.transport())
    monkeypatch.setattr(verbs_connection, "running_release", lambda: "0123456789abcdef")
    for access in hs.Access:
        other = served.transport(access=access)
        other.reconnect()
        assert settle(other) is LinkState.DOWN
        assert f"release 0123456789abcdef, this blink-ringd {running_release()}: deploy one" in other.detail
        other.close()
    assert "turned away: the frontend runs release 0123456789abcdef" in complaints(caplog)
    assert magic(good) == b"BLNKRNG1"
    monkeypatch.undo()
    connected(good).close()


# Keys


def test_a_wrong_key_gets_nowhere(served: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = connected(served.transport())
    write_key(tmp_path / "wrong")
    wrong = served.transport(1)
    wrong._request = Request(
        served.rdma.model_copy(update={"key_file": tmp_path / "wrong"}), hs.Access.WORKER, 1, HOLDER
    )
    before = set(served.network.qps)
    wrong.reconnect()
    assert settle(wrong) is LinkState.DOWN
    assert "the frontend does not have a key of this blink-ringd" in wrong.detail
    assert set(served.network.qps) & before == before
    assert magic(good) == b"BLNKRNG1"
    assert "127.0.0.1 port" in complaints(caplog)
    assert "does not have a key" in complaints(caplog)
    good.close()
    wrong.close()


def test_keys_rotate_without_a_restart(served: Host, tmp_path: Path) -> None:
    """Next key to ringd, then to the frontends, then the old one away: no connection is lost."""
    new = write_key(tmp_path / "next")
    old = connected(served.transport(0))
    write_key(tmp_path / "frontend-key", new)
    moved = served.rdma.model_copy(update={"key_file": tmp_path / "frontend-key"})
    transport = served.transport(1)
    transport._request = Request(moved, hs.Access.WORKER, 1, HOLDER)
    assert magic(connected(transport)) == b"BLNKRNG1"
    write_key(tmp_path / "key", new)
    (tmp_path / "next").unlink()
    assert magic(old) == b"BLNKRNG1", "a connected frontend needs no key any more"
    assert magic(connected(transport)) == b"BLNKRNG1"
    transport.close()
    old.close()


# Whoever else connects


def dial(h: Host) -> socket.socket:
    """A raw connection to ringd."""
    return socket.create_connection((str(h.rdma.ringd_address), h.rdma.ringd_port), timeout=5)


def recorded(h: Host) -> list[bytes]:
    """Every byte that a good frontend sends for partition 1."""
    fabric, sent = SimFabric(h.network, "10.0.0.3"), []
    with dial(h) as sock:
        connection = Connection(Request(h.rdma, hs.Access.WORKER, 1, HOLDER), fabric, sock)
        wire, exchange = Wire(sock, 5), hs.ClientHandshake(read_key(h.rdma.key_file), hs.Access.WORKER, 1)
        sent.append(exchange.hello())
        wire.send(sent[0])
        offer = hs.Offer(HOLDER, running_release().encode(), connection.local)
        sent.append(exchange.offer(wire.receive(hs.Frame.CHALLENGE), offer))
        wire.send(sent[1])
        exchange.accept(wire.receive(hs.Frame.ANSWER))
        connection.close()
    return sent


def until_closed(sock: socket.socket) -> bytes:
    """What ringd still sends before it hangs up."""
    data = b""
    with suppress(ConnectionResetError):  # it hung up before it had read everything
        while part := sock.recv(4096):
            data += part
    return data


def test_a_replayed_frontend_is_turned_away(served: Host, caplog: pytest.LogCaptureFixture) -> None:
    victim = connected(served.transport(0))
    sent = recorded(served)
    wait_for("the recorded one to be gone", lambda: served.sessions() == 1)
    before = set(served.network.qps)
    with dial(served) as sock:
        sock.sendall(b"".join(sent))
        reply = until_closed(sock)
    assert reply[hs.HEAD_SIZE + 34] == hs.Frame.REFUSE
    assert "does not have a key" in complaints(caplog)
    assert set(served.network.qps) == before
    assert magic(victim) == b"BLNKRNG1"
    victim.close()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20, 49])
def test_a_truncated_frontend_is_turned_away(served: Host, count: int, caplog: pytest.LogCaptureFixture) -> None:
    sent = b"".join(recorded(served))
    with dial(served) as sock:
        sock.sendall(sent[:count])
        sock.shutdown(socket.SHUT_WR)
        assert until_closed(sock) == b""
    wait_for("the complaint", lambda: "hung up in the middle of the handshake" in complaints(caplog))


def test_a_port_scan_learns_nothing(served: Host, caplog: pytest.LogCaptureFixture) -> None:
    good = connected(served.transport())
    for probe in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", bytes(4096), b"\x01\x32\x00" + bytes(50)):
        with dial(served) as sock:
            sock.sendall(probe)
            assert until_closed(sock) == b""
    assert magic(good) == b"BLNKRNG1"
    assert complaints(caplog).count("turned away") == 4
    good.close()


def test_nothing_a_stranger_sends_gets_in_or_breaks_it(served: Host) -> None:
    """Frames of a good frontend with bytes changed, left out, doubled and cut off, and frames in another order."""
    good, rng = connected(served.transport(0)), random.Random(4)
    sent = recorded(served)
    wait_for("the recorded one to be gone", lambda: served.sessions() == 1)
    before = set(served.network.qps)
    for _ in range(80):
        data = bytearray(b"".join(rng.choices(sent, k=rng.randint(1, 3))))
        for _ in range(rng.randint(0, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        with dial(served) as sock:
            sock.sendall(data[: rng.randint(0, len(data))])
            sock.shutdown(socket.SHUT_WR)
            reply = until_closed(sock)
        assert not reply or reply[0] in (hs.Frame.CHALLENGE, hs.Frame.REFUSE)
        assert hs.Frame.ANSWER not in frames(reply)
    assert set(served.network.qps) == before
    assert magic(good) == b"BLNKRNG1"
    good.close()


def frames(data: bytes) -> list[int]:
    """Types of the frames in ``data``."""
    kinds = []
    while data:
        length = int.from_bytes(data[1 : hs.HEAD_SIZE], "little")
        kinds.append(data[0])
        data = data[hs.HEAD_SIZE + length :]
    return kinds


def test_a_slow_frontend_has_a_deadline(served: Host, caplog: pytest.LogCaptureFixture) -> None:
    """Slow loris: bytes one after the other do not extend the time for the whole handshake."""
    good, hello = connected(served.transport()), hs.ClientHandshake(Key(bytes(32)), hs.Access.WORKER, 1).hello()
    with dial(served) as sock:
        closed = threading.Event()

        def trickle() -> None:
            for byte in hello:
                if closed.is_set():
                    return
                try:
                    sock.send(bytes((byte,)))
                except OSError:
                    return
                time.sleep(0.1)

        thread = threading.Thread(target=trickle)
        thread.start()
        assert until_closed(sock) == b""
        closed.set()
        thread.join()
    assert "no handshake within 1 s" in complaints(caplog)
    assert magic(good) == b"BLNKRNG1"
    good.close()


def test_idle_strangers_keep_no_frontend_out_for_long(served: Host) -> None:
    strangers = [dial(served) for _ in range(40)]
    transport = served.transport()

    def up() -> bool:
        if transport.state is LinkState.DOWN:
            transport.reconnect()
        return transport.state is LinkState.UP

    wait_for("a place", up, 10)
    for sock in strangers:
        sock.close()
    transport.close()


def test_the_same_refusal_is_logged_once_a_minute(served: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        with dial(served) as sock:
            sock.sendall(bytes(3))
            until_closed(sock)
    assert complaints(caplog).count("turned away") == 1


# The link


def test_connecting_never_blocks(tmp_path: Path, ring: RingObjects) -> None:
    """A host that accepts and says nothing: the caller goes on, and is told after the timeout."""
    with socket.create_server(("127.0.0.1", 0)) as silent, host(tmp_path) as h:
        transport = h.transport()
        deaf = h.rdma.model_copy(update={"ringd_port": silent.getsockname()[1], "handshake_timeout_s": 0.5})
        transport._request = Request(deaf, hs.Access.WORKER, 0, HOLDER)
        longest = 0.0
        transport.reconnect()
        while transport.state is LinkState.CONNECTING:
            start = time.monotonic()
            transport.poll()
            longest = max(longest, time.monotonic() - start)
            time.sleep(0.001)
        assert longest < deaf.handshake_timeout_s, "a poll waited for the handshake"
        assert "did not answer for 0.5 s" in transport.detail
        transport.close()


def test_a_closed_transport_leaves_an_attempt_nothing(served: Host) -> None:
    for _ in range(20):
        transport = served.transport()
        transport.reconnect()
        transport.close()
    wait_for("ringd to let go", lambda: served.sessions() == 0)
    wait_for("the attempts to end", lambda: served.network.open["device"] == 1)


def test_nothing_leaks_over_a_hundred_reconnects(served: Host) -> None:
    transport = connected(served.transport())
    assert magic(transport) == b"BLNKRNG1"
    before = dict(served.network.open)
    for _ in range(100):
        assert magic(connected(transport)) == b"BLNKRNG1"
    assert served.network.open == before
    transport.close()
    wait_for("ringd to let go", lambda: served.sessions() == 0)
    assert served.network.open["device"] == 1, "the host's own"
    assert served.network.open["qp"] == 0
