"""What ringd does with a backend: takes its memory, outlives its being stopped, notices its death."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from blink.errors import BlinkError
from blink.ring.announce import ANNOUNCE, MAGIC, SOCKET, VERSION, Announcer, Kind, announce
from blink.ring.layout import HEADER, PAGE, Geometry
from blink.ring.shm import RingObjects
from blink.ring.transport import LinkState, Region
from tests.appliance import wait_for
from tests.ring.objects import ring_objects
from tests.ringd.host import ROOT, Host, connected, host, read, settle
from tests.ringd.test_frontends import GEOMETRY, LIMITS, magic


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Host]:
    with host(tmp_path) as h:
        yield h


def make_ring(directory: Path, geometry: Geometry = GEOMETRY) -> RingObjects:
    ring = ring_objects(directory, geometry, fingerprint=bytes(32), **LIMITS)
    ring.publish()
    return ring


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingObjects]:
    objects = make_ring(tmp_path / "ring")
    yield objects
    objects.close()


def path_of(h: Host) -> Path:
    return h.config.instance.run_dir / SOCKET


def test_without_a_ring_frontends_are_told(served: Host) -> None:
    transport = served.transport()
    transport.reconnect()
    assert settle(transport) is LinkState.DOWN
    assert "backend not up: it has announced no ring" in transport.detail
    transport.close()


def test_a_memfd_is_as_good_as_a_file(served: Host, ring: RingObjects) -> None:
    fds = [os.memfd_create(name) for name in ("G", "F")]
    os.write(fds[0], ring.g.tobytes())
    os.write(fds[1], ring.f.tobytes())
    header = ring.g[:PAGE].tobytes()
    with announce(path_of(served), header, *fds):
        for fd in fds:
            os.close(fd)
        transport = connected(served.transport())
        assert magic(transport) == b"BLNKRNG1"
        transport.close()


def test_the_ring_is_gone_with_its_backend_and_nothing_stays_registered(
    served: Host, ring: RingObjects, tmp_path: Path
) -> None:
    before = dict(served.network.open)
    announcement = served.announce(tmp_path / "ring")
    transport = connected(served.transport())
    ring.g[8] = 42
    announcement.close()
    wait_for("the notice", lambda: transport.poll() == [] and transport.state is LinkState.GONE)
    assert f"backend not up: process {os.getpid()}, which made the ring, has ended" in transport.detail
    transport.close()
    wait_for("the registrations to go", lambda: served.network.open == before)


def test_last_words_can_be_read(served: Host, ring: RingObjects, tmp_path: Path) -> None:
    """A backend that ends publishes the ends of its requests first; its frontends still get them."""
    announcement = served.announce(tmp_path / "ring")
    transport = connected(served.transport())
    ring.g[GEOMETRY.g_off + 8] = 99
    announcement.close()
    wait_for("ringd to notice", lambda: served.daemon._ring is None)
    assert read(transport, Region.G, 8, 8) == b"\x63" + bytes(7)
    transport.close()


def test_a_killed_backend_is_noticed_and_a_stopped_one_changes_nothing(served: Host, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.ring.scheduler_process", str(tmp_path / "ring"), "60"]
    command.append(str(served.config.instance.run_dir))
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as backend:
        assert backend.stdout is not None
        assert backend.stdout.readline() == b"published\n"
        wait_for("the ring", lambda: served.daemon._ring is not None)
        transport = connected(served.transport())
        os.kill(backend.pid, signal.SIGSTOP)
        assert magic(transport) == b"BLNKRNG1"
        assert magic(connected(transport)) == b"BLNKRNG1", "a handshake needs no backend"
        os.kill(backend.pid, signal.SIGCONT)
        backend.kill()
        wait_for("the notice", lambda: transport.poll() == [] and transport.state is LinkState.GONE)
        transport.close()


def test_a_restarted_backend_replaces_the_ring(served: Host, ring: RingObjects, tmp_path: Path) -> None:
    served.announce(tmp_path / "ring")  # stays open, as of a backend that has not been reaped yet
    transport = connected(served.transport())
    second = make_ring(tmp_path / "ring")
    served.announce(tmp_path / "ring")
    wait_for("the notice", lambda: transport.poll() == [] and transport.state is not LinkState.UP)
    epoch = read(connected(transport), Region.H, HEADER.offset("epoch"), 8)
    assert epoch == second.epoch.to_bytes(8, "little")
    assert served.network.open["domain"] == 4, "the first ring is still registered"  # 2 partitions, observers, frontend
    transport.close()
    second.close()


def test_a_restarted_ringd_gets_the_ring_again(tmp_path: Path, ring: RingObjects) -> None:
    with host(tmp_path) as h, Announcer(h.config.instance.run_dir, ring):
        wait_for("the ring", lambda: h.daemon._ring is not None)
        transport = connected(h.transport())
        h.stop()
        wait_for("the loss", lambda: transport.poll() == [] and transport.state is LinkState.DOWN)
        assert "closed the connection" in transport.detail or "no answer" in transport.detail
        h.daemon = type(h.daemon)(h.config, h.rdma, h._fabric)
        h.start()
        wait_for("the ring", lambda: h.daemon._ring is not None)
        assert magic(connected(transport)) == b"BLNKRNG1"
        transport.close()


def test_an_announcer_waits_for_ringd(tmp_path: Path, ring: RingObjects, caplog: pytest.LogCaptureFixture) -> None:
    h = Host(tmp_path)
    try:
        with Announcer(h.config.instance.run_dir, ring):
            wait_for("the warning", lambda: "start it: frontends wait" in caplog.text)
            h.start()
            wait_for("the ring", lambda: h.daemon._ring is not None)
        wait_for("its end", lambda: h.daemon._ring is None)
    finally:
        h.close()


# Announcements that are refused


def test_a_dma_buf_is_refused_by_a_device_that_cannot(served: Host, ring: RingObjects, tmp_path: Path) -> None:
    before = dict(served.network.open)
    with (tmp_path / "ring" / "G").open("rb") as g, (tmp_path / "ring" / "F").open("rb") as f:
        header = ring.g[:PAGE].tobytes()
        with pytest.raises(BlinkError, match=r"registering a dma-buf with sim0: Operation not supported: use a device"):
            announce(path_of(served), header, g.fileno(), f.fileno(), Kind.DMABUF)
    assert served.network.open == before


def test_memory_shorter_than_its_header_says_is_refused(served: Host, ring: RingObjects, tmp_path: Path) -> None:
    for fd, name in ((os.memfd_create("G"), "G"), (os.memfd_create("F"), "F")):
        os.write(fd, bytes(PAGE))
        good = os.open(tmp_path / "ring" / ("F" if name == "G" else "G"), os.O_RDWR)
        fds = (fd, good) if name == "G" else (good, fd)
        with pytest.raises(BlinkError, match=f"the ring's {name} is shorter than its header says"):
            announce(path_of(served), ring.g[:PAGE].tobytes(), *fds)
        os.close(fd)
        os.close(good)


def send(h: Host, message: bytes, count: int, directory: Path) -> bytes:
    """Ringd's reply to a raw message with ``count`` descriptors."""
    fds = [os.open(directory / "F", os.O_RDWR) for _ in range(count)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.settimeout(10)
        s.connect(str(path_of(h)))
        socket.send_fds(s, [message], fds)
        for fd in fds:
            os.close(fd)
        return s.recv(4096)


def test_nonsense_is_refused_and_its_descriptors_are_closed(served: Host, ring: RingObjects, tmp_path: Path) -> None:
    header = ring.g[:PAGE].tobytes()
    good = ANNOUNCE.pack(MAGIC, VERSION, Kind.FILE) + header
    unpublished = ANNOUNCE.pack(MAGIC, VERSION, Kind.FILE) + header[:0x10] + bytes(8) + header[0x18:]
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for message, count, says in (
        (good, 1, "and 1 descriptors"),
        (good, 3, "and 3 descriptors"),
        (good[:-1], 2, f"an announcement of {len(good) - 1} bytes"),
        (good + b"x", 2, f"an announcement of {len(good) + 1} bytes"),
        (b"x" * len(good), 2, "an announcement of version"),
        (ANNOUNCE.pack(MAGIC, VERSION, 9) + header, 2, "memory of kind 9"),
        (ANNOUNCE.pack(MAGIC, VERSION, Kind.FILE) + bytes(PAGE), 2, "the announced ring"),
        (unpublished, 2, "has no epoch"),
    ):
        assert says in send(served, message, count, tmp_path / "ring").decode()
    wait_for("the descriptors", lambda: len(os.listdir("/proc/self/fd")) == before)  # noqa: PTH208
    assert served.daemon._ring is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_another_user_may_not_announce(tmp_path: Path, ring: RingObjects) -> None:
    """The socket's mode keeps others out; where it lets them in, their credentials do."""
    nobody = pwd.getpwnam("nobody")
    script = (
        "import os, socket, sys\n"
        f"os.setuid({nobody.pw_uid})\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.connect(sys.argv[1])\n"
        "print(s.recv(4096)[1:].decode())\n"
    )
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.owner() == "root" and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)

    def attempt(h: Host) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, str(path_of(h))]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)

    with host(tmp_path) as h:
        assert "Permission denied" in attempt(h).stderr
        path_of(h).chmod(0o666)
        assert f"user {nobody.pw_uid} may not announce a ring" in attempt(h).stdout
        assert h.daemon._ring is None
    with host(tmp_path, backend_user="nobody") as h, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        assert path_of(h).stat().st_mode & 0o777 == 0o666
        s.connect(str(path_of(h)))
        s.close()


def test_an_unknown_backend_user_is_named(tmp_path: Path) -> None:
    with pytest.raises(BlinkError, match="no user no-such-user"):
        Host(tmp_path, backend_user="no-such-user")


def test_many_announcers_end_together(served: Host, ring: RingObjects) -> None:
    """Threads of several backends that come and go leave the last one's ring, or none."""
    threads = []
    for _ in range(5):
        thread = threading.Thread(target=lambda: announce_and_leave(served, ring))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(20)
    wait_for("the last end", lambda: served.daemon._ring is None)
    wait_for("the registrations to go", lambda: served.network.open["memory"] == 0)


def announce_and_leave(h: Host, ring: RingObjects) -> None:
    fds = ring.descriptors()
    try:
        announce(path_of(h), ring.g[:PAGE].tobytes(), *fds).close()
    finally:
        for fd in fds:
            os.close(fd)
