"""Client, transport, handshake, ringd and the real scheduler in another process; only the device is simulated."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path

from blink.ring.client import RingClient
from blink.ring.layout import Reason
from tests.ring.test_two_processes import drive
from tests.ringd.host import host, scheduler


def test_every_token_arrives(tmp_path: Path) -> None:
    with scheduler(tmp_path / "ring") as process, host(tmp_path) as h:
        h.announce(tmp_path / "ring")
        ends = drive(RingClient(h.transport()), random.Random(2))
        out, err = process.communicate("stop\n", timeout=60)
    assert process.returncode == 0, err
    counters = json.loads(out)
    assert counters["FINISHED_LENGTH"] == ends.count(Reason.LENGTH)
    assert counters["TORN"] == 0
    assert h.network.open == {"device": 0, "domain": 0, "memory": 0, "qp": 0}


def test_no_token_is_lost_or_doubled_over_cuts(tmp_path: Path) -> None:
    """The link goes down and up again and again while requests run; every stream still is right, to its end."""
    with scheduler(tmp_path / "ring") as process, host(tmp_path) as h:
        h.announce(tmp_path / "ring")
        stop, cuts = threading.Event(), 0

        def cut() -> None:
            nonlocal cuts
            while not stop.wait(0.4):
                h.network.up, cuts = False, cuts + 1
                time.sleep(0.05)
                h.network.up = True

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            drive(RingClient(h.transport()), random.Random(3))
        finally:
            stop.set()
            cutter.join()
        out, err = process.communicate("stop\n", timeout=60)
    assert process.returncode == 0, err
    assert cuts > 0
    assert json.loads(out)["TORN"] == 0
    assert h.network.open == {"device": 0, "domain": 0, "memory": 0, "qp": 0}
