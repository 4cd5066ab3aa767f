"""The checks of the link, over blink-ringd and a device of software; the lab runs them over real verbs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from blink.operate.smoke import rdma_checks
from blink.operate.smoke.check import Check, Outcome, run_check
from blink.operate.smoke.context import Context
from blink.operate.smoke.main import CHECKS, select
from tests.ring.objects import ring_objects
from tests.ringd.host import Host, host
from tests.ringd.simulated import SUCCESS, SimQueuePair
from tests.ringd.test_frontends import LIMITS

BY_NAME: dict[str, Check[Context]] = {c.name: c for c in rdma_checks.CHECKS}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    with host(tmp_path) as h:
        ring = ring_objects(tmp_path / "ring", h.config.ring.geometry(), fingerprint=bytes(32), **LIMITS)
        ring.publish()
        h.announce(tmp_path / "ring")
        monkeypatch.setattr(rdma_checks, "open_transport", lambda _, partition: h.transport(partition))
        yield h
        ring.close()


def check(h: Host, name: str, rounds: int = 50) -> Outcome:
    """Run one check."""
    with Context(h.config, rounds=rounds) as context:
        return run_check(BY_NAME[name], context)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rdma-handshake", "10.0.0.2 to 10.0.0.1, path MTU 4096, ring "),
        ("rdma-latency", "write 64 B p50 "),
        ("rdma-order", "50 rounds of 1024 bytes"),
    ],
)
def test_a_good_link_passes(served: Host, name: str, says: str) -> None:
    outcome = check(served, name)
    assert outcome.passed, outcome
    assert says in outcome.detail
    assert served.network.open["device"] == 1, "the check left its connection behind"


def test_a_machine_without_rdma_is_told_so(served: Host) -> None:
    """Here there is neither pyverbs nor a device, or one of them; where both are, the lab has its say."""
    outcome = check(served, "rdma-device")
    if outcome.passed:
        pytest.skip("this machine has an RDMA device")
    assert "pyverbs" in outcome.detail or "rdma.device: this machine has no RDMA device" in outcome.detail
    assert outcome.hop == "device"


def test_a_host_that_is_down_fails_at_ringd(served: Host) -> None:
    served.stop()
    outcome = check(served, "rdma-handshake")
    assert (outcome.passed, outcome.hop) == (False, "ringd")
    assert "Connection refused: start blink-ringd there" in outcome.detail


def test_a_cut_link_fails_at_the_link(served: Host) -> None:
    served.network.up = False
    outcome = check(served, "rdma-latency")
    assert (outcome.passed, outcome.hop) == (False, "link")
    assert "no answer from the ring host" in outcome.detail


def test_a_completion_before_its_data_is_found(served: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that, once, reports a write as completed and delivers it with the next one."""
    run, late = SimQueuePair._run, []

    def lazy(qp: SimQueuePair, op, lkey: int, read: bool) -> int:  # type: ignore[no-untyped-def]
        if not read and op.length == rdma_checks.PAYLOAD:
            late.append(op)
            if len(late) == 7:
                return SUCCESS
        return run(qp, op, lkey, read)

    monkeypatch.setattr(SimQueuePair, "_run", lazy)
    outcome = check(served, "rdma-order")
    assert not outcome.passed
    assert "in round 7 " in outcome.detail
    assert "bytes of a completed write are missing" in outcome.detail


def test_the_checks_belong_to_the_transport(served: Host) -> None:
    names = {c.name for c in select(served.config, None)}
    assert set(BY_NAME) < names <= {c.name for c in CHECKS}
    shm = served.config.model_copy(update={"ring": served.config.ring.model_copy(update={"transport": "shm"})})
    assert not set(BY_NAME) & {c.name for c in select(shm, None)}
