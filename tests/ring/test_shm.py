"""The shared-memory transport: mappings, attachment, restarts of either side, leases."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.errors import BlinkError
from blink.ring import words
from blink.ring.client import Handle, RingClient, RingUnavailable, SamplingParams, SubmitRequest, Update
from blink.ring.layout import COMMAND, HEADER, REQUEST, Geometry, Phase, Reason, State
from blink.ring.lease import PartitionLease
from blink.ring.reader import SLOTS_PER_SLAB
from blink.ring.shm import ShmTransport
from blink.ring.transport import LinkState, Region
from tests.ring.objects import ring_objects

GEOMETRY = Geometry(slots=16, parts=2, input_bytes=8192, output_bytes=8192)
FINGERPRINT = bytes(range(32))
LIMITS: dict[str, Any] = {
    "lanes": 4, "queue_cap": 16, "vocab": 1000, "max_context": 256, "ext_words": 64, "page_tokens": 16, "pages": 32,
    "fingerprint": FINGERPRINT,
}  # fmt: skip


class Host:
    """A published ring whose scheduler is the test."""

    def __init__(self, directory: Path, geometry: Geometry = GEOMETRY, **limits: Any) -> None:
        self.ring = ring_objects(directory, geometry, **{**LIMITS, **limits})
        self.ring.publish()
        self.beat(Phase.IDLE)

    def region(self, region: Region, partition: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        q = self.ring.geometry
        if region is Region.G:
            return self.ring.g[q.g_off + partition * q.g_stride :][: q.g_stride]
        return self.ring.f[partition * q.f_stride :][: q.f_stride]

    def beat(self, phase: Phase, budget_ms: int = 100) -> None:
        for p in range(self.ring.geometry.parts):
            head = self.region(Region.G, p)[:64].view(np.uint64)
            head[2] += 1
            head[3] = words.Activity.pack(phase=phase, budget_ms=budget_ms)

    def publish(self, handle: Handle, tokens: list[int], state: State, reason: Reason = Reason.NONE,
                times: words.Times | None = None) -> None:  # fmt: skip
        """Answer a request of partition 1, as its record asks."""
        q, f, g = self.ring.geometry, self.region(Region.F, 1), self.region(Region.G, 1)
        record = f[q.request_off + REQUEST.size * handle.slot :][: REQUEST.size].view(REQUEST.dtype())[0]
        at = int(record["out_off"])
        g[at : at + 4 * len(tokens)].view(np.uint32)[:] = tokens
        status = g[q.status_off :].view(np.uint64)
        prev, last = [0, 0, *tokens][-2:]
        status[3 * handle.slot + 1] = words.W1.pack(gen=handle.gen, count=len(tokens), last=last, prev=prev)
        if times is not None:
            status[3 * handle.slot + 2] = words.W2.pack(
                gen=handle.gen, first=times.first_us, rest=times.last_us - times.first_us
            )
        status[3 * handle.slot] = words.W0.pack(gen=handle.gen, state=state, reason=reason, count=len(tokens))


def request(prompt: int = 5, max_tokens: int = 20) -> SubmitRequest:
    return SubmitRequest(np.arange(1, prompt + 1, dtype=np.uint32), max_tokens, SamplingParams(seed=1))


def poll_until(client: RingClient, done: Any, seconds: float = 5.0) -> list[Update]:
    """Poll until ``done(updates)``. Fails naming the client's health."""
    updates: list[Update] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        updates += client.poll(time.monotonic())
        if done(updates):
            return updates
        time.sleep(0.005)
    raise AssertionError(f"waited {seconds} s; {client.health()}, {updates}")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ring"


@pytest.fixture
def client(directory: Path) -> Iterator[RingClient]:
    client = RingClient(ShmTransport(directory, 1), fingerprint=FINGERPRINT)
    yield client
    client.close()


def attach(client: RingClient) -> None:
    poll_until(client, lambda _: client.health().down == "")


def test_a_request_runs_through(directory: Path, client: RingClient) -> None:
    host = Host(directory)
    attach(client)
    handle = client.submit(request())
    assert client.poll(time.monotonic()) == []
    f, q = host.region(Region.F, 1), GEOMETRY
    assert words.rung(int(f[:8].view(np.uint64)[0])) == 1, "one poll writes, completes and rings"
    assert int(f[q.cmd_off : q.cmd_off + 8].view(np.uint64)[0]) == words.Commit.pack(gen=1, seq=1)
    host.publish(handle, [5, 6, 7], State.DECODE_PROCESSING)
    (update,) = client.poll(time.monotonic())
    assert (update.handle, update.tokens, update.state) == (handle, [5, 6, 7], State.DECODE_PROCESSING)
    assert update.times is None
    host.publish(handle, [5, 6, 7, 8], State.DECODE_COMPLETED, Reason.EOS, words.Times(1500, 9000))
    (update,) = client.poll(time.monotonic())
    assert (update.tokens, update.reason, update.error) == ([8], Reason.EOS, None)
    assert update.times == (1500, 9000)
    assert client.health().outstanding == 0


def test_an_end_whose_times_were_read_too_early_has_none(directory: Path, client: RingClient) -> None:
    """15: the read saw w2 before the scheduler wrote it, and w0 after."""
    host = Host(directory, Geometry(2, 2, 4096, 1 << 19))
    attach(client)
    for times in (words.Times(1500, 9000), None):
        handle = client.submit(request())
        client.poll(time.monotonic())
        host.publish(handle, [5], State.DECODE_COMPLETED, Reason.EOS, times)
        (update,) = client.poll(time.monotonic())
        assert (update.handle.slot, update.reason, update.times) == (0, Reason.EOS, times)


def test_a_long_answer_wraps_the_count_of_the_hint(directory: Path, client: RingClient) -> None:
    """14: count16 in w1 wraps at 65536 tokens; a backlog arrives in several reads."""
    host = Host(directory, Geometry(4, 2, 4096, 1 << 19), max_context=100_000)
    attach(client)
    handle = client.submit(request(max_tokens=70_000))
    client.poll(time.monotonic())
    tokens = [(i * 7 + 1) % 1000 for i in range(70_000)]
    got: list[int] = []
    for count in (65_533, 65_535, 65_536, 65_537, 65_539, 70_000):
        end = count == len(tokens)
        state, reason = (State.DECODE_COMPLETED, Reason.LENGTH) if end else (State.DECODE_PROCESSING, Reason.NONE)
        host.publish(handle, tokens[:count], state, reason)
        missing = count - len(got)
        for update in poll_until(client, lambda news, n=missing: sum(len(u.tokens) for u in news) >= n):
            got += update.tokens
        assert got == tokens[:count]
    assert client._session is not None
    assert client._session._reader.hinted == 6


def test_a_cancel_is_one_word_for_its_generation(directory: Path, client: RingClient) -> None:
    host = Host(directory)
    attach(client)
    handle = client.submit(request())
    client.poll(time.monotonic())
    client.cancel(handle)
    client.cancel(handle)
    client.poll(time.monotonic())
    at = GEOMETRY.cmd_off + COMMAND.size * handle.slot + COMMAND.offset("cancel")
    assert int(host.region(Region.F, 1)[at : at + 8].view(np.uint64)[0]) == words.Cancel.pack(gen=handle.gen)
    host.publish(handle, [], State.DECODE_COMPLETED, Reason.CANCELLED)
    (update,) = client.poll(time.monotonic())
    assert update.reason is Reason.CANCELLED
    client.cancel(handle)  # after the end: nothing
    assert client.poll(time.monotonic()) == []


def test_the_worker_cannot_store_to_g(directory: Path) -> None:
    """1: a store through the worker's own mapping of G ends the process."""
    Host(directory)
    program = f"""
        import ctypes
        from pathlib import Path
        from blink.ring.shm import ShmTransport
        from blink.ring.transport import Region
        transport = ShmTransport(Path({str(directory)!r}), 0)
        transport.reconnect()
        ctypes.c_uint64.from_address(transport._base[Region.F]).value = 0
        print("F is writable", flush=True)
        ctypes.c_uint64.from_address(transport._base[Region.G]).value = 0
        print("G is writable", flush=True)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout == "F is writable\n", run.stderr
    assert run.returncode == -signal.SIGSEGV


def test_offsets_outside_a_region_are_refused(directory: Path) -> None:
    """8: no arithmetic of the client can reach another partition."""
    Host(directory)
    transport = ShmTransport(directory, 0)
    transport.reconnect()
    for offset, length in ((GEOMETRY.g_stride - 4, 8), (-8, 8), (GEOMETRY.g_stride, 4), (2, 4)):
        with pytest.raises(ValueError, match="outside it or not aligned"):
            transport.post_read(Region.G, offset, length)
    with pytest.raises(ValueError, match="outside it or not aligned"):
        transport.post_write([(GEOMETRY.f_stride - 4, bytes(8))])


def test_a_client_waits_for_its_backend(directory: Path, client: RingClient) -> None:
    client.poll(time.monotonic())
    assert "backend not up" in client.health().down
    with pytest.raises(RingUnavailable, match="backend not up"):
        client.submit(request())
    host = Host(directory)
    attach(client)
    assert client.health().epoch == host.ring.epoch


def test_a_restarted_backend_is_noticed(directory: Path, client: RingClient) -> None:
    """12: requests of the old epoch end with an error, and nothing of the new one reaches them."""
    old = Host(directory)
    attach(client)
    handle = client.submit(request())
    client.poll(time.monotonic())
    new = Host(directory)
    old.publish(handle, [1, 2], State.DECODE_COMPLETED, Reason.EOS)
    updates = poll_until(client, lambda _: client.health().epoch == new.ring.epoch)
    tokens = [t for u in updates for t in u.tokens]
    assert tokens in ([], [1, 2])  # it may have ended before the restart was seen
    if not tokens:
        assert updates[-1].error == "the backend was restarted while this request was in flight"
    assert sum(u.error is not None or u.reason is not None for u in updates) == 1
    attach(client)
    again = client.submit(request())
    assert (again.epoch, again.gen) == (new.ring.epoch, handle.gen)
    client.poll(time.monotonic())
    old.publish(handle, [1, 2, 3, 4], State.DECODE_COMPLETED, Reason.EOS)
    assert client.poll(time.monotonic()) == []
    new.publish(again, [5, 6], State.DECODE_COMPLETED, Reason.EOS)
    (update,) = client.poll(time.monotonic())
    assert (update.handle, update.tokens) == (again, [5, 6])


def test_a_removed_ring_ends_requests_at_once(directory: Path, client: RingClient) -> None:
    host = Host(directory)
    attach(client)
    client.submit(request())
    client.poll(time.monotonic())
    host.ring.unlink()
    (update,) = poll_until(client, bool)
    assert update.error is not None
    assert "was removed" in update.error
    assert "backend not up" in client.health().down, client.health()
    assert list(directory.iterdir()) == []


OWNER = """
import sys, time
from pathlib import Path
from tests.ring.test_shm import Host
host = Host(Path(sys.argv[1]))
print("published", flush=True)
time.sleep(60)
"""


def test_requests_end_at_once_when_the_backend_is_killed(directory: Path, client: RingClient) -> None:
    """Its files stay, and so does its heartbeat's promise; only the kernel knows that nobody is left to keep it."""
    with subprocess.Popen([sys.executable, "-c", OWNER, str(directory)], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "published\n"
            attach(client)
            client.submit(request())
            client.poll(time.monotonic())
            owner.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            assert poll_until(client, lambda _: True) == [], "a stopped backend still owns its ring"
            assert client.health().link_up
        finally:
            owner.kill()
    killed = time.monotonic()
    (update,) = poll_until(client, bool)
    assert time.monotonic() - killed < 2, "long before the heartbeat is overdue"
    assert "the process that made the ring" in str(update.error)
    poll_until(client, lambda _: "the process that made the ring" in client.health().down)
    late = ShmTransport(directory, 0)
    late.reconnect()
    assert late.state is LinkState.DOWN, "a ring without an owner is not attached to"
    Host(directory)
    attach(client)


def test_the_last_words_of_a_backend_are_read(directory: Path, client: RingClient) -> None:
    """What was published before the ring was removed is delivered, whatever falls between two polls."""
    for _ in range(5):
        host = Host(directory)
        attach(client)
        handle = client.submit(request())
        client.poll(time.monotonic())
        time.sleep(0.11)  # the next poll looks at the directory
        host.publish(handle, [5], State.DECODE_COMPLETED, Reason.ERR_STOPPED)
        host.ring.unlink()
        (update,) = poll_until(client, bool)
        assert (update.tokens, update.reason) == ([5], Reason.ERR_STOPPED)
        poll_until(client, lambda _: "backend not up" in client.health().down)


def test_unlink_leaves_a_successor_alone(directory: Path) -> None:
    old, new = Host(directory), Host(directory)
    old.ring.unlink()
    transport = ShmTransport(directory, 0)
    transport.reconnect()
    assert transport.state is LinkState.UP
    new.ring.unlink()
    assert list(directory.iterdir()) == []


def test_an_unpublished_ring_is_invisible(directory: Path) -> None:
    ring = ring_objects(directory, GEOMETRY, **LIMITS)
    transport = ShmTransport(directory, 0)
    transport.reconnect()
    assert transport.state is LinkState.DOWN
    ring.publish()
    transport.reconnect()
    assert transport.state is LinkState.UP


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("magic", 1, "magic is 0x1"),
        ("version", 1, "ring version 1.0, not 2.0"),
        ("features", 1, "ring version 2.1"),
        ("slots", 15, "not a multiple of parts"),
        ("parts", 1, "partition 1 of a ring with 1 partitions"),
        ("out_off", 64, "out_off is 64"),
        ("in_len", 8192 + 64, "f_stride"),
        ("vocab", 0, "vocab is 0"),
        ("epoch", 0, "no epoch yet"),
    ],
)
def test_a_wrong_header_is_refused_in_words(
    directory: Path, client: RingClient, field: str, value: int, said: str
) -> None:
    host = Host(directory)
    host.ring.g[: HEADER.size].view(HEADER.dtype())[field][0] = value
    client.poll(time.monotonic())
    health = client.health()
    assert not health.link_up
    assert said in health.down


def test_another_model_is_refused(directory: Path, client: RingClient) -> None:
    Host(directory, fingerprint=bytes(32))
    client.poll(time.monotonic())
    assert "serves model 000000000000, this frontend has 000102030405" in client.health().down


def test_a_partition_that_is_not_there_is_refused(directory: Path) -> None:
    Host(directory)
    client = RingClient(ShmTransport(directory, 2))
    client.poll(time.monotonic())
    assert "partition 2 of a ring with 2 partitions" in client.health().down


def test_a_truncated_object_is_refused_and_not_a_bus_error(directory: Path) -> None:
    Host(directory)
    (directory / "F").write_bytes(b"")
    client = RingClient(ShmTransport(directory, 0))
    client.poll(time.monotonic())
    assert "F is shorter than its header says" in client.health().down


def test_a_new_frontend_takes_the_partition_over(directory: Path) -> None:
    """13: what the old process left is cancelled, and the slot is used again only after its end."""
    host = Host(directory)
    first = RingClient(ShmTransport(directory, 1))
    attach(first)
    handle = first.submit(request())
    first.poll(time.monotonic())
    first.close()
    second = RingClient(ShmTransport(directory, 1))
    second.poll(time.monotonic())
    second.poll(time.monotonic())
    assert "1 requests of the previous frontend" in second.health().down
    with pytest.raises(RingUnavailable):
        second.submit(request())
    at = GEOMETRY.cmd_off + COMMAND.size * handle.slot + COMMAND.offset("cancel")
    assert int(host.region(Region.F, 1)[at : at + 8].view(np.uint64)[0]) == words.Cancel.pack(gen=handle.gen)
    host.publish(handle, [], State.DECODE_COMPLETED, Reason.CANCELLED)
    attach(second)
    second.submit(request())
    second.close()


def test_health_names_the_hop(directory: Path, client: RingClient) -> None:
    host = Host(directory)
    attach(client)
    now = time.monotonic()
    client.poll(now)
    host.beat(Phase.DECODE, budget_ms=3000)
    for step in range(1, 13):
        client.poll(now + step / 2)
    assert client.health().down == "", "6 s are within twice the budget"
    client.poll(now + 6.9)
    health = client.health()
    assert health.stalled
    assert health.down.startswith("scheduler: no beat for 6.4 s in phase decode, budget 3.0 s")
    for phase, said in ((Phase.DRAINING, "draining"), (Phase.STOPPED, "stopped"), (Phase.STARTING, "starting")):
        host.beat(phase)
        client.poll(now + 7)
        assert said in client.health().down
    host.beat(Phase.IDLE)
    client.poll(now + 7.1)
    assert client.health().down == ""


def test_a_client_that_slept_does_not_blame_the_scheduler(directory: Path, client: RingClient) -> None:
    Host(directory)
    attach(client)
    client.poll(time.monotonic() + 60)
    assert not client.health().stalled


def test_a_lease_is_exclusive(tmp_path: Path) -> None:
    lease = PartitionLease(tmp_path, 3)
    PartitionLease(tmp_path, 4).release()
    with pytest.raises(BlinkError, match="partition 3 is in use by process"):
        PartitionLease(tmp_path, 3)
    lease.release()
    PartitionLease(tmp_path, 3).release()


def test_a_lease_ends_with_its_process(tmp_path: Path) -> None:
    program = f"""
        import os, pathlib
        from blink.ring.lease import PartitionLease
        lease = PartitionLease(pathlib.Path({str(tmp_path)!r}), 0)
        print("held", flush=True)
        input()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlinkError, match=f"process {holder.pid}"):
            PartitionLease(tmp_path, 0)
        holder.kill()
        holder.wait(timeout=30)
    PartitionLease(tmp_path, 0).release()


def test_one_poll_is_bounded_and_first_tokens_come_first(directory: Path, client: RingClient) -> None:
    """Every stream has news at every poll, and more streams than one poll looks at."""
    n = 2 * SLOTS_PER_SLAB + 100
    host = Host(directory, Geometry(2 * n, 2, 64 * n, 64 * n), queue_cap=n, lanes=n)
    attach(client)
    handles = [client.submit(request(max_tokens=8)) for _ in range(n)]
    got: dict[Handle, list[int]] = {handle: [] for handle in handles}
    old, new = handles[: n - 50], handles[n - 50 :]
    client.poll(time.monotonic())

    def publish(some: list[Handle], count: int) -> None:
        for handle in some:
            host.publish(handle, list(range(count)), State.DECODE_PROCESSING)

    def poll() -> set[Handle]:
        updates = client.poll(time.monotonic())
        assert len(updates) <= SLOTS_PER_SLAB
        for update in updates:
            got[update.handle] += update.tokens
        return {u.handle for u in updates}

    publish(old, 1)
    assert set.union(*(poll() for _ in range(3))) == set(old)
    publish(old, 2)
    publish(new, 1)
    assert set(new) <= poll(), "a first token waits for one poll only"
    seen: set[Handle] = set()
    for count in (3, 4, 5):  # the scheduler is faster than the reader, and yet every stream has its turn
        publish(old, count)
        seen |= poll()
    assert seen == set(old)
    publish(handles, 8)
    for _ in range(3):
        poll()
    assert all(tokens == list(range(8)) for tokens in got.values())
