"""Client, transport, handshake, ringd and the real scheduler in another process; only the device is simulated."""

from __future__ import annotations

import json
import random
from pathlib import Path

from blink.ring.client import RingClient, Update
from blink.ring.layout import Reason
from tests.ring.test_two_processes import drive
from tests.ringd.host import Host, host, scheduler


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


class CutClient(RingClient):
    """A client whose network goes down every 50 polls, until the client has noticed."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.transport())
        self._network = host.network
        self.polls = self.cuts = 0

    def poll(self, now: float) -> list[Update]:
        if not self._network.up:
            self._network.up = not self.health().link_up
        elif self.health().link_up:
            self.polls += 1
            if self.polls % 50 == 0:
                self._network.up = False
                self.cuts += 1
        return super().poll(now)


def test_no_token_is_lost_or_doubled_over_cuts(tmp_path: Path) -> None:
    """The link goes down and up again and again while requests run; every stream still is right, to its end."""
    with scheduler(tmp_path / "ring") as process, host(tmp_path) as h:
        h.announce(tmp_path / "ring")
        client = CutClient(h)
        drive(client, random.Random(3))
        out, err = process.communicate("stop\n", timeout=60)
    assert process.returncode == 0, err
    assert client.cuts > 3
    assert json.loads(out)["TORN"] == 0
    assert h.network.open == {"device": 0, "domain": 0, "memory": 0, "qp": 0}
