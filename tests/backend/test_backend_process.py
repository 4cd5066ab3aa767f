"""The backend as a process: serving, draining, stopping, being killed; asked through the ring."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from blink.ring.client import Handle, RingClient, SamplingParams, SubmitRequest
from blink.ring.layout import Reason
from blink.ring.lease import PartitionLease
from blink.ring.shm import ShmTransport
from tests.appliance import Appliance, appliance, wait_for

pytestmark = pytest.mark.e2e
LONG = 900


class Worker:
    """A ring client that remembers what became of its requests."""

    def __init__(self, a: Appliance, partition: int = 0) -> None:
        lease = PartitionLease(a.config.instance.run_dir, partition)
        self.client = RingClient(ShmTransport(a.ring_dir, partition), lease=lease)
        self.tokens: dict[Handle, list[int]] = {}
        self.end: dict[Handle, Reason | str] = {}

    def poll(self) -> None:
        for update in self.client.poll(time.monotonic()):
            self.tokens[update.handle] += update.tokens
            if update.reason is not None or update.error is not None:
                self.end[update.handle] = update.error or update.reason or Reason.NONE

    def wait_up(self) -> None:
        def up() -> bool:
            self.poll()
            return self.client.health().down is None or not self.client.health().down

        wait_for("the link", up)

    def submit(self, max_tokens: int) -> Handle:
        prompt = np.array([5, 6, 7], np.uint32)
        sampling = SamplingParams(seed=1, temperature=0)
        handle = self.client.submit(SubmitRequest(prompt, max_tokens, sampling, ignore_eos=True))
        self.tokens[handle] = []
        return handle

    def wait(self, handle: Handle, tokens: int | None = None) -> None:
        """Wait for ``tokens`` tokens of ``handle``, or for its end."""

        def reached() -> bool:
            self.poll()
            return handle in self.end or (tokens is not None and len(self.tokens[handle]) >= tokens)

        wait_for("tokens", reached)


@pytest.fixture
def a(tmp_path: Path, tiny_model: Path) -> Iterator[Appliance]:
    with appliance(tmp_path, tiny_model) as a:
        yield a


@pytest.fixture
def worker(a: Appliance) -> Iterator[Worker]:
    worker = Worker(a)
    yield worker
    worker.client.close()


def test_it_serves_and_stops_without_leaving_anything(a: Appliance, worker: Worker) -> None:
    backend = a.backend()
    worker.wait_up()
    handle = worker.submit(20)
    worker.wait(handle)
    assert worker.end[handle] == Reason.LENGTH
    assert len(worker.tokens[handle]) == 20
    backend.send_signal(signal.SIGTERM)
    assert backend.wait(10) == 0
    assert list(a.ring_dir.iterdir()) == []
    assert a.log("backend").splitlines()[-1].endswith("stopped")
    assert "Traceback" not in a.log("backend")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_ends_what_runs_and_refuses_what_comes(a: Appliance, worker: Worker, number: signal.Signals) -> None:
    backend = a.backend()
    worker.wait_up()
    running = worker.submit(LONG)
    worker.wait(running, 5)
    backend.send_signal(number)
    wait_for("the drain", lambda: "stopping" in a.log("backend"))
    late = worker.submit(LONG)
    worker.wait(running)
    assert worker.end[running] == Reason.LENGTH
    assert len(worker.tokens[running]) == LONG
    worker.wait(late)
    assert worker.end[late] == Reason.ERR_DRAINING
    assert backend.wait(10) == 0


def test_a_drain_that_takes_too_long_ends_with_an_error(tmp_path: Path, tiny_model: Path) -> None:
    with appliance(tmp_path, tiny_model, engine={"drain_timeout_s": 0.05}) as a:
        backend = a.backend()
        worker = Worker(a)
        worker.wait_up()
        handle = worker.submit(LONG)
        worker.wait(handle, 5)
        backend.send_signal(signal.SIGTERM)
        worker.wait(handle)
        assert worker.end[handle] == Reason.ERR_STOPPED
        assert backend.wait(10) == 0
        assert "requests still ran 0.05 s after the signal" in a.log("backend")
        worker.client.close()


def test_a_second_signal_stops_at_once(a: Appliance, worker: Worker) -> None:
    backend = a.backend()
    worker.wait_up()
    handle = worker.submit(LONG)
    worker.wait(handle, 5)
    backend.send_signal(signal.SIGTERM)
    backend.send_signal(signal.SIGINT)
    worker.wait(handle)
    assert worker.end[handle] == Reason.ERR_STOPPED
    assert backend.wait(10) == 0


def test_a_living_backend_keeps_its_ring(a: Appliance, worker: Worker) -> None:
    a.backend()
    worker.wait_up()
    second = a.command("backend")
    assert second.returncode == 1
    assert second.stderr == (
        f"blink: instance.ring_dir {a.ring_dir}: another backend serves this ring: stop it first, or give this "
        "instance its own ring_dir\n"
    )
    handle = worker.submit(10)
    worker.wait(handle)
    assert worker.end[handle] == Reason.LENGTH


def test_a_killed_backend_is_replaced_by_a_new_epoch(a: Appliance, worker: Worker) -> None:
    backend = a.backend()
    worker.wait_up()
    handle = worker.submit(LONG)
    worker.wait(handle, 5)
    before = a.observe().header.epoch
    backend.kill()
    backend.wait(10)
    assert {p.name for p in a.ring_dir.iterdir()} == {"G", "F"}
    started = time.monotonic()
    a.backend()
    worker.wait(handle)
    assert "restarted" in str(worker.end[handle]) or "removed" in str(worker.end[handle])
    worker.wait_up()
    again = worker.submit(10)
    worker.wait(again)
    assert worker.end[again] == Reason.LENGTH
    assert time.monotonic() - started < 5
    assert a.observe().header.epoch != before


def test_a_stopped_backend_is_stalled_and_goes_on_where_it_was(a: Appliance, worker: Worker) -> None:
    backend = a.backend()
    worker.wait_up()
    handle = worker.submit(LONG)
    worker.wait(handle, 5)
    backend.send_signal(signal.SIGSTOP)
    seen = a.command("status")
    assert seen.returncode == 1
    assert "state         stalled" in seen.stdout
    backend.send_signal(signal.SIGCONT)
    worker.wait(handle)
    assert worker.end[handle] == Reason.LENGTH
    assert len(worker.tokens[handle]) == LONG
    assert a.command("status").returncode == 0


def test_a_signal_while_it_loads_ends_it_without_leaving_anything(a: Appliance) -> None:
    backend = a.start("backend")
    wait_for("the ring's files", lambda: a.ring_dir.exists() and list(a.ring_dir.iterdir()))
    backend.send_signal(signal.SIGTERM)
    assert backend.wait(10) == 0
    assert list(a.ring_dir.iterdir()) == []
    assert "Traceback" not in a.log("backend")


def test_status_of_an_appliance_that_is_down(a: Appliance) -> None:
    seen = a.command("status")
    assert seen.returncode == 1
    assert "state         down" in seen.stdout
    assert f"no ring in {a.ring_dir}" in seen.stdout


def test_a_supervisor_is_told_of_ready_and_stopping(
    a: Appliance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(tmp_path / "notify"))
        s.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        backend = a.start("backend")
        assert s.recv(1000) == b"READY=1\nSTATUS=serving tiny"
        assert a.observe().header.epoch
        backend.send_signal(signal.SIGTERM)
        assert s.recv(1000).startswith(b"STOPPING=1")
        assert backend.wait(10) == 0


def test_a_cancelled_request_frees_its_lane_and_pages(a: Appliance, worker: Worker) -> None:
    a.backend()
    worker.wait_up()
    handle = worker.submit(LONG)
    worker.wait(handle, 5)
    worker.client.cancel(handle)
    worker.wait(handle)
    assert worker.end[handle] == Reason.CANCELLED
    seen = wait_for("an idle ring", lambda: (o := a.observe()).requests_held == 0 and o)
    assert (seen.lanes_used, seen.pages_used) == (0, 0)
    assert seen.finished == {Reason.CANCELLED: 1}
