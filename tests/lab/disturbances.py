"""What happens to a machine, and what its users may be told of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from images.lab.machine import Machine
from tests.lab.deployed import Deployed, wait_for

NOTICED_S = 20.0  # a cut that long shows in GET /health
BROKEN = "connection"  # a stream whose server is gone ends so, without a text


@dataclass(frozen=True)
class Disturbance:
    """``act`` returns when the cause is removed. A stream that it ends is told one of ``excuses``, or none ends.

    ``new_epoch``: a backend starts anew, so the ring afterwards is another one; otherwise it is the same.
    """

    name: str
    act: Callable[[Deployed], None]
    excuses: tuple[str, ...] = ()
    new_epoch: bool = False


def _cut(machine: str, seconds: float) -> Callable[[Deployed], None]:
    def act(lab: Deployed) -> None:
        end = time.monotonic() + seconds
        Machine(machine).link(up=False)
        try:
            if seconds > NOTICED_S:
                assert lab.wait_unhealthy()["hop"] == "link"
            time.sleep(max(0.0, end - time.monotonic()))
        finally:
            Machine(machine).link(up=True)

    return act


def _kill(machine: str, service: str) -> Callable[[Deployed], None]:
    def act(lab: Deployed) -> None:
        old = lab.main_pid(Machine(machine), service)
        lab.systemctl(Machine(machine), "kill --signal=KILL", service)
        wait_for(f"another {service}", lambda: lab.main_pid(Machine(machine), service) not in (0, old))

    return act


def _stand(machine: str, service: str, seconds: float) -> Callable[[Deployed], None]:
    def act(lab: Deployed) -> None:
        lab.systemctl(Machine(machine), "kill --signal=STOP", service)
        try:
            time.sleep(seconds)
        finally:
            lab.systemctl(Machine(machine), "kill --signal=CONT", service)

    return act


def _reset(machine: str) -> Callable[[Deployed], None]:
    def act(lab: Deployed) -> None:
        m = Machine(machine)
        m.ssh("sync")  # the lab's file system has no journal, unlike an appliance's
        m.reset()
        if machine == "gpu01":
            assert lab.wait_unhealthy()["hop"] in ("link", "scheduler")
        m.wait()
        if machine == "dpu01":
            lab.connect()

    return act


GONE = ("in flight", "the link was down for", "no beat for")
FAULTS = (
    Disturbance("cable pulled for 3 s", _cut("gpu01", 3)),
    Disturbance("ringd killed", _kill("gpu01", "ringd")),
    Disturbance("backend stopped for 8 s", _stand("gpu01", "backend", 8)),
    Disturbance("backend killed", _kill("gpu01", "backend"), GONE, new_epoch=True),
    Disturbance("frontend killed", _kill("dpu01", "frontend"), (BROKEN,)),
    Disturbance("cable pulled for 8 s", _cut("dpu01", 8)),
    Disturbance("ringd stopped for 8 s", _stand("gpu01", "ringd", 8)),
    Disturbance("cable pulled for 40 s", _cut("dpu01", 40), GONE),
    Disturbance("frontend stopped for 8 s", _stand("dpu01", "frontend", 8)),
    Disturbance("GPU host reset", _reset("gpu01"), GONE, new_epoch=True),
    Disturbance("DPU reset", _reset("dpu01"), (BROKEN,)),
)
