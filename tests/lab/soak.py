"""Load over RDMA with one fault after the other: python -m tests.lab.soak [--minutes M] [--every S]

Prints one line for each fault and a verdict; exit code 1 where a token was lost or doubled, a stream ended without an
excuse, or something was not given back. Runs on the lab as it is, and leaves it running.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from images.lab.machine import Machine
from tests.lab.deployed import UNIT, Deployed, wait_for
from tests.lab.disturbances import BROKEN, FAULTS, Disturbance
from tests.lab.load import Load, Tally

CLIENTS = 6  # of which the scheduler has four lanes
SERVICES = (("gpu01", "backend"), ("gpu01", "ringd"), ("dpu01", "frontend"))
GROWTH_MIB = 8.0  # of one process, after its first minute
SETTLE_S = 60.0
CALM_S = 8.0  # at least, between the end of one fault and the next
OBJECTS = ("pd", "cq", "qp", "mr", "ctx")


def verbs_objects(machine: Machine) -> dict[str, int]:
    """What the kernel counts of RDMA objects."""
    words = machine.ssh("rdma resource show").stdout.split()
    return {kind: int(words[words.index(kind) + 1]) for kind in OBJECTS}


def memory(name: str) -> dict[tuple[str, int], float]:
    """MiB that each service's processes on that machine have resident, by service and process id."""
    services = [service for machine, service in SERVICES if machine == name]
    units = " ".join(UNIT.format(service) for service in services)
    command = (
        f"for unit in {units}; do pid=$(systemctl show --property=MainPID --value $unit); "
        "echo $pid $(grep VmRSS /proc/$pid/status 2>/dev/null || echo - 0); done"
    )
    found = {}
    for service, line in zip(services, Machine(name).ssh(command).stdout.splitlines(), strict=True):
        pid, _, kib = line.split()[:3]
        if int(kib):
            found[service, int(pid)] = int(kib) / 1024
    return found


@dataclass
class Soak:
    """A run of so many minutes, or one round of FAULTS where ``minutes`` is None; ``failures`` says what was wrong."""

    lab: Deployed
    minutes: float | None
    every_s: float
    failures: list[str] = field(default_factory=list)
    total: Tally = field(default_factory=Tally)
    faults: int = 0
    memory: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def run(self) -> None:
        """Learn the answers, load, disturb, settle, compare."""
        started = time.monotonic()
        load = Load(self.lab, CLIENTS)
        load.learn()
        health = self.lab.wait_healthy()
        free, epoch = health["free_slots"], health["epoch"]
        objects = {name: verbs_objects(Machine(name)) for name in ("gpu01", "dpu01")}
        print(f"{'AT':>6}  {'WHAT':<26}{'HEALED':>7}{'STREAMS':>9}{'LEFT':>6}{'TOKENS':>8}{'REFUSED':>9}{'ENDED':>7}"
              f"{'WRONG':>7}  RESIDENT MIB: {', '.join(service for _, service in SERVICES)}", flush=True)  # fmt: skip
        begun = due = time.monotonic()
        load.start()
        for fault in FAULTS if self.minutes is None else itertools.cycle(FAULTS):
            due = max(due + self.every_s, time.monotonic() + CALM_S)
            if self.minutes is not None and due > begun + 60 * self.minutes:
                break
            time.sleep(due - time.monotonic())
            self._note(load.turn(), Disturbance("", lambda _: None), begun, None)
            start = time.monotonic()
            fault.act(self.lab)
            removed = time.monotonic()
            before, epoch = epoch, self.lab.wait_healthy()["epoch"]
            if (epoch != before) is not fault.new_epoch:
                self.failures.append(f"{fault.name}: epoch {before} before it, {epoch} afterwards")
            self._note(load.turn(), fault, begun, (start, removed))
            self.faults += 1
        time.sleep(CALM_S)
        load.stop()
        self._note(load.turn(), Disturbance("no fault any more", lambda _: None), begun, None)
        self._compare(free, objects)
        self._verdict(time.monotonic() - started)

    def _note(self, tally: Tally, fault: Disturbance, begun: float, times: tuple[float, float] | None) -> None:
        for reason, count in tally.errors.items():
            if not any(excuse in reason for excuse in fault.excuses):
                self.failures.append(f"{fault.name or 'no fault'}: {count} streams ended with: {reason}")
        if tally.unanswered and BROKEN not in fault.excuses:
            self.failures.append(f"{fault.name or 'no fault'}: {tally.unanswered} requests got no answer")
        self.failures += tally.wrong
        self.total.complete += tally.complete
        self.total.left += tally.left
        self.total.tokens += tally.tokens
        self.total.refused += tally.refused
        self.total.unanswered += tally.unanswered
        self.total.errors += tally.errors
        self.total.wrong += tally.wrong
        resident = []
        if times is None:
            for name in ("gpu01", "dpu01"):
                for process, mib in memory(name).items():
                    self.memory[process].append(mib)
                    resident.append(f"{mib:.1f}")
        healed = f"{time.monotonic() - times[1]:.1f} s" if times else ""
        refused, ended = tally.refused + tally.unanswered, sum(tally.errors.values())
        print(f"{time.monotonic() - begun:>4.0f} s  {fault.name:<26}{healed:>7}{tally.complete:>9}{tally.left:>6}"
              f"{tally.tokens:>8}{refused:>9}{ended:>7}{len(tally.wrong):>7}  "
              f"{'  '.join(resident)}".rstrip(), flush=True)  # fmt: skip

    def _compare(self, free: int, objects: dict[str, dict[str, int]]) -> None:
        """Slots, lanes, pages and verbs objects are what they were; no process has grown."""
        self._expect("every slot to be free", lambda: self.lab.health()[1], lambda h: h["free_slots"] == free)
        self._expect("the scheduler to hold nothing", self.lab.status, lambda s: s["requests"]["held"] == 0
                     and s["lanes"]["used"] == s["pages"]["used"] == 0)  # fmt: skip
        for name, before in objects.items():
            self._expect(
                f"{name} to have {before} RDMA objects", lambda n=name: verbs_objects(Machine(n)),  # type: ignore[misc]
                lambda now, b=before: now == b,  # type: ignore[misc]
            )  # fmt: skip
        for (service, pid), samples in self.memory.items():
            if len(samples) >= 3 and samples[-1] - samples[1] > GROWTH_MIB:
                self.failures.append(f"{service} (process {pid}) grew from {samples[1]:.1f} to {samples[-1]:.1f} MiB")

    def _expect(self, what: str, look: Callable[[], Any], right: Callable[[Any], bool]) -> None:
        try:
            wait_for(what, lambda: right(look()), SETTLE_S)
        except AssertionError as error:
            self.failures.append(f"{error}; last seen: {look()}")

    def _verdict(self, seconds: float) -> None:
        t = self.total
        print(f"\n{seconds / 60:.1f} min, {self.faults} faults, {t.complete} streams complete, {t.left} left by their "
              f"clients, {t.tokens} tokens, each compared; {t.refused} requests refused, {t.unanswered} not "
              f"answered, {sum(t.errors.values())} "
              f"streams ended with an error, {len(t.wrong)} wrong")  # fmt: skip
        for reason, count in t.errors.most_common():
            print(f"{count:>6} x {reason}")
        for failure in self.failures:
            print(f"FAILED {failure}")


def main() -> int:
    """Run and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.soak", description="Load with faults, on the lab.")
    parser.add_argument("--minutes", type=float, default=30, help="how long (default: %(default)g)")
    parser.add_argument("--every", type=float, default=60, help="seconds between faults (default: %(default)g)")
    arguments = parser.parse_args()
    lab = Deployed()
    try:
        lab.wait_healthy()
        soak = Soak(lab, arguments.minutes, arguments.every)
        soak.run()
    finally:
        lab.close()
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
