"""The counters in the header, through a client and through an observer, and phases that nobody knows."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from blink.config import ApplianceConfig
from blink.operate.status import status
from blink.ring.client import RingClient
from blink.ring.counters import Counters
from blink.ring.layout import G_HEAD, HEADER, Counter, Phase, Reason
from blink.ring.observe import Observer
from blink.ring.shm import ShmTransport
from tests.ring.test_shm import FINGERPRINT, GEOMETRY, Host, poll_until

VALUES = {
    Counter.LANES_TAKEN: 7, Counter.LANES_RETURNED: 4, Counter.PAGES_TAKEN: 100, Counter.PAGES_RETURNED: 58,
    Counter.RECORDS_TAKEN: 9, Counter.RECORDS_RETURNED: 4,
}  # fmt: skip


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path / "ring")
    counters = host.ring.g[HEADER.offset("counters") :][: 8 * 128].view(np.uint64)
    for counter, value in VALUES.items():
        counters[counter] = value
    counters[Counter.FINISHED_BASE + Reason.EOS] = 3
    return host


def check(found: Counters) -> None:
    assert (found.lanes_used, found.pages_used, found.requests_held) == (3, 42, 5)
    assert found.counter(Counter.PAGES_TAKEN) == 100
    assert dict(found.finished) == {Reason.EOS: 3}


def test_a_client_reads_them_without_waiting(host: Host) -> None:
    client = RingClient(ShmTransport(host.ring.directory, 0), fingerprint=FINGERPRINT)
    found: list[Counters] = []
    assert not client.read_counters(found.append)
    poll_until(client, lambda _: client.health().down == "")
    assert client.read_counters(found.append)
    assert not found
    client.poll(time.monotonic())
    assert len(found) == 1
    check(found[0])
    client.close()
    assert not client.read_counters(found.append)


def test_an_observer_reads_them_and_knows_no_unknown_phase(host: Host) -> None:
    observer = Observer(ShmTransport(host.ring.directory, 0))
    seen = observer.observe()
    check(seen)
    assert seen.phase is Phase.IDLE
    host.ring.g[host.ring.geometry.g_off + G_HEAD.offset("activity") :][:4].view(np.uint32)[0] = 99
    assert observer.observe().phase is None
    observer.close()


def test_status_is_down_in_a_phase_that_it_does_not_know(host: Host, tmp_path: Path) -> None:
    config = ApplianceConfig.model_validate(
        {
            "instance": {"run_dir": tmp_path / "run", "ring_dir": host.ring.directory},
            "ring": {"slots": GEOMETRY.slots, "partitions": GEOMETRY.parts},
            "model": {"path": tmp_path, "served_name": "m"},
        }
    )
    phase = host.ring.g[host.ring.geometry.g_off + GEOMETRY.g_stride + G_HEAD.offset("activity") :][:4].view(np.uint32)
    phase[0] = 99
    beating = threading.Event()

    def beat() -> None:
        while not beating.wait(0.001):
            for p in range(GEOMETRY.parts):
                at = host.ring.geometry.g_off + p * GEOMETRY.g_stride + G_HEAD.offset("beat")
                host.ring.g[at : at + 8].view(np.uint64)[0] += np.uint64(1)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        document = status(config)
    finally:
        beating.set()
        thread.join()
    assert (document["state"], document["phase"]) == ("down", "unknown")
    assert "unknown phase" in document["cause"]
