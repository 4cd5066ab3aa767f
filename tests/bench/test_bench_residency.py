"""``blink bench residency`` without a GPU: what it refuses, the table, and the work of others."""

from __future__ import annotations

import os
import time
from pathlib import Path

from blink.bench.interference import busy
from blink.bench.residency import Makespan, render
from tests.appliance import appliance


def test_an_engine_on_a_cpu_has_nothing_to_compare(tmp_path: Path, tiny_model: Path) -> None:
    with appliance(tmp_path, tiny_model) as a:
        done = a.command("bench", "residency")
        assert done.returncode == 1
        assert done.stderr == (
            "blink: this compares GPU engines over shared memory: set engine.kind and ring.transport so\n"
        )


def test_the_table_has_medians_and_their_ratio() -> None:
    times = {(True, False): (1.0, 9.0, 2.0), (False, False): (3.0,), (True, True): (2.0,), (False, True): (8.0,)}
    found = [Makespan("s", resident, is_busy, t) for (resident, is_busy), ts in times.items() for t in ts]
    assert render(found).splitlines()[1].split() == ["s", "2.000", "3.000", "1.50", "2.000", "8.000", "4.00"]


def test_busy_processes_take_their_cores_and_go() -> None:
    core = sorted(os.sched_getaffinity(0))[0]

    def ticks() -> int:
        fields = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} "))
        return sum(map(int, fields.split()[1:4]))

    with busy(2, [core]):
        before = ticks()
        time.sleep(1)
        assert ticks() - before > 0.5 * os.sysconf("SC_CLK_TCK")
