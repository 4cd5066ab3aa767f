"""The link on real verbs (Soft-RoCE) between two machines: client and ringd against the real scheduler, and faults.

These say nothing about the order in which a network card's writes become visible: one emulated processor hides races.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("images.lab.machine")

from images.lab.machine import Machine
from tests.lab.verbs_pair import RINGD, SCHEDULER, Client, client, push, resources, running, ssh

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not running(), reason="the lab is not up: python -m images.lab up"),
]
MANY, PACE = "80", "0.3"  # requests, one begun each so many seconds: half a minute
LIMIT = "500"  # seconds, on a machine that does much else


@pytest.fixture(scope="module", autouse=True)
def served() -> Iterator[None]:
    """ringd with a ring on gpu01."""
    for name in ("gpu01", "dpu01"):
        push(name)
    RINGD.start()
    SCHEDULER.start()
    RINGD.wait_log(" partitions, ")
    yield
    for unit in (SCHEDULER, RINGD):
        unit.stop()


def right(result: Any, count: int) -> None:
    """Every request ended as it should, with every token, once."""
    assert result["wrong"] == 0, result
    assert result["reasons"] == {"LENGTH": count}, result


def generating() -> Client:
    """A client in the middle of many requests."""
    c = Client("stream", MANY, LIMIT, PACE)
    c.wait_for('"health": ""', 300)
    time.sleep(3)
    return c


def test_every_token_arrives() -> None:
    right(client("stream", "30", LIMIT), 30)


def test_the_device_enforces_permissions() -> None:
    for what, outcome in client("permissions").items():
        assert not outcome["landed"], what
        assert not outcome["changed"], what
        assert "REM_ACCESS_ERR" in outcome["detail"] or "REM_INV_REQ_ERR" in outcome["detail"], (what, outcome)


def test_nothing_leaks_over_a_hundred_reconnects() -> None:
    before = resources("gpu01")
    result = client("reconnect", "100")
    assert result["after"] == result["before"]
    assert result["connected"]["qp"] == result["before"]["qp"] + 3
    assert resources("gpu01") == before
    _, half, end = result["rss_kib"]
    assert end - half < 512, f"{end - half} KiB more after 50 reconnects"


def test_a_cut_resumes_with_no_token_lost_or_doubled() -> None:
    c = generating()
    for _ in range(2):
        Machine("gpu01").link(up=False)
        c.wait_for('"health": "link', 300)
        time.sleep(2)
        Machine("gpu01").link(up=True)
        time.sleep(4)
    result = c.result()
    right(result, int(MANY))
    assert result["downs"] >= 1


def test_a_stopped_backend_changes_nothing() -> None:
    """Its ring is read, and a frontend connects, while it is stopped; then it goes on."""
    c = generating()
    SCHEDULER.kill("STOP")
    try:
        c.wait_for("scheduler: no beat for", 300)
    finally:
        SCHEDULER.kill("CONT")
    right(c.result(), int(MANY))


def test_a_killed_backend_ends_requests_with_a_clear_error_and_the_next_serves() -> None:
    c = generating()
    SCHEDULER.kill("KILL")
    c.wait_for("which made the ring, has ended", 300)
    SCHEDULER.start()
    result = c.result()
    assert result["wrong"] == 0
    lost = {reason for reason in result["reasons"] if reason != "LENGTH"}
    assert all("which made the ring, has ended while this request was in flight" in reason for reason in lost), lost
    assert sum(result["reasons"].values()) == int(MANY)
    assert result["reasons"]["LENGTH"] > 0


def test_a_killed_frontend_is_taken_over() -> None:
    c = generating()
    c.unit.kill("KILL")
    right(client("stream", "20", LIMIT), 20)


def test_a_restarted_ringd_gets_ring_and_frontends_back() -> None:
    c = generating()
    RINGD.start()
    right(c.result(), int(MANY))


def test_a_wrong_key_is_refused_and_disturbs_nobody() -> None:
    c = generating()
    ssh("dpu01", "cp -p /root/verbs.key /root/verbs.key.good")
    try:
        # The client of this test runs beside the one that streams.
        said = ssh(
            "dpu01",
            "cd /root/src && PYTHONPATH=/root/site:/root/src $(test -x /opt/blink/bin/python && echo "
            "/opt/blink/bin/python || echo python3) -m tests.ring.verbs.lab_client /root/verbs.toml refused key",
        )
    finally:
        ssh("dpu01", "mv /root/verbs.key.good /root/verbs.key")
    assert "does not have a key of this blink-ringd" in said
    assert "10.9.1.2 port" in RINGD.log()
    right(c.result(), int(MANY))


def test_a_rebooted_frontend_machine_is_served_again() -> None:
    generating()
    machine = Machine("dpu01")
    machine.reset()
    machine.wait()
    right(client("stream", "20", LIMIT), 20)


def test_at_the_end_nothing_is_left() -> None:
    """Queue pairs, protection domains, memory regions: all are given back by both machines."""
    SCHEDULER.stop()
    RINGD.stop()
    for name in ("gpu01", "dpu01"):
        left = resources(name)
        assert (left["mr"], left["ctx"]) == (0, 0), name
        assert left["qp"] == 1, f"{name}: more than the kernel's own"
