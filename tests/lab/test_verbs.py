"""The link on real verbs (Soft-RoCE), below the appliance: what the device enforces, what leaks, what faults lose.

Client and ringd run against the real scheduler with a toy model, so that every token of many concurrent streams is
known. Nothing here speaks of the order in which a network card's writes become visible: one emulated processor hides
races.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("images.lab.machine")

from images.lab.machine import Machine
from tests.lab.verbs_pair import HOSTS, RINGD, SCHEDULER, Client, Unit, client, push, resources, running

pytestmark = pytest.mark.skipif(not running(), reason="the lab is not up: python -m images.lab up")

REQUESTS, FEWER, PACE = 100, 40, 0.4  # one begun each so many seconds
LIMIT = "500"  # seconds, on a machine that does much else


@pytest.fixture(scope="module")
def before() -> dict[str, dict[str, int]]:
    """What the kernels count before any test of this file."""
    return {name: resources(name) for name in HOSTS}


@pytest.fixture(scope="module", autouse=True)
def served(before: dict[str, dict[str, int]]) -> Iterator[None]:
    """ringd with a ring on gpu01."""
    for name in HOSTS:
        push(name)
    RINGD.start()
    SCHEDULER.start()
    RINGD.wait_log(" partitions, ")
    yield
    for unit in (SCHEDULER, RINGD):
        unit.stop()


def generating(requests: int = REQUESTS) -> Client:
    """A client in the middle of many requests."""
    c = Client("stream", str(requests), LIMIT, str(PACE))
    c.wait_for('"health": ""')
    time.sleep(3)
    return c


def right(result: Any, count: int) -> None:
    """Every request ended as it should, with every token, once."""
    assert result["wrong"] == 0, result
    assert result["reasons"] == {"LENGTH": count}, result


def test_the_device_enforces_permissions() -> None:
    for what, outcome in client("permissions").items():
        assert not outcome["landed"], what
        assert not outcome["changed"], what
        assert "REM_ACCESS_ERR" in outcome["detail"] or "REM_INV_REQ_ERR" in outcome["detail"], (what, outcome)


def test_nothing_leaks_over_a_hundred_reconnects() -> None:
    host = resources("gpu01")
    result = client("reconnect", "100")
    assert result["after"] == result["before"]
    assert result["connected"]["qp"] == result["before"]["qp"] + 3
    assert resources("gpu01") == host
    _, half, end = result["rss_kib"]
    assert end - half < 512, f"{end - half} KiB more after 50 reconnects"


def test_no_token_is_lost_or_doubled() -> None:
    """One client over two cuts of the cable, a stopped backend, and a restarted ringd."""
    c = generating()
    for _ in range(2):
        Machine("gpu01").link(up=False)
        try:
            c.wait_for('"health": "link', newer=True)
            time.sleep(1)
        finally:
            Machine("gpu01").link(up=True)
        c.wait_for('"health": ""', newer=True)
    SCHEDULER.kill("STOP")
    try:
        c.wait_for("scheduler: no beat for", newer=True)
    finally:
        SCHEDULER.kill("CONT")
    c.wait_for('"health": ""', newer=True)
    RINGD.start()
    c.wait_for('"health": "link', newer=True)
    c.wait_for('"health": ""', newer=True)
    result = c.result()
    right(result, REQUESTS)
    assert result["downs"] >= 4, "not every fault was noticed"


def test_a_second_frontend_is_refused_and_a_killed_one_taken_over() -> None:
    c = generating(6 * REQUESTS)  # still in the middle of them when the second one, slow to start, asks
    assert "partition 0 is in use by the frontend at 10.9.1.2" in client("refused", name="second")["detail"]
    c.unit.kill("KILL")
    right(client("stream", "20", LIMIT), 20)


def test_a_killed_backend_ends_requests_clearly_and_the_next_one_serves() -> None:
    c = generating(FEWER)
    SCHEDULER.kill("KILL")
    c.wait_for("which made the ring, has ended")
    SCHEDULER.start()
    result = c.result()
    assert result["wrong"] == 0
    lost = {reason for reason in result["reasons"] if reason != "LENGTH"}
    assert all("which made the ring, has ended while this request was in flight" in reason for reason in lost), lost
    assert sum(result["reasons"].values()) == FEWER
    assert result["reasons"]["LENGTH"] > 0


def test_at_the_end_nothing_is_left(before: dict[str, dict[str, int]]) -> None:
    """Queue pairs, protection domains, memory regions: all are given back by both machines."""
    units: tuple[Unit, ...] = (SCHEDULER, RINGD)
    for unit in units:
        unit.stop()
    assert {name: resources(name) for name in HOSTS} == before
