"""The memory sum, and what is available."""

from __future__ import annotations

from pathlib import Path

import pytest

from blink.backend.memory import MemoryPlan, available_memory, require_room
from blink.errors import BlinkError

MIB = 1 << 20


def test_a_plan_that_fits_is_accepted_to_the_byte() -> None:
    MemoryPlan({"weights": 5, "ring": 7}).require(12)


def test_a_plan_that_does_not_fit_names_every_term_and_the_sum() -> None:
    with pytest.raises(BlinkError, match=r"weights 500 MiB \+ engine.pages 100 MiB = 600 MiB, and 599 MiB are"):
        MemoryPlan({"weights": 500 * MIB, "engine.pages": 100 * MIB}).require(599 * MIB)


@pytest.mark.parametrize(("available", "says"), [(570, "lower engine.pages by 30 %,"), (499, "lower engine.pages,")])
def test_how_many_pages_are_too_many_is_said_where_fewer_would_do(available: int, says: str) -> None:
    with pytest.raises(BlinkError, match=says):
        MemoryPlan({"weights": 500 * MIB, "engine.pages": 100 * MIB}).require(available * MIB)


def test_a_full_file_system_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(BlinkError, match=rf"{tmp_path}: the ring needs {1 << 40} MiB, and its file system has \d+ MiB"):
        require_room(tmp_path, 1 << 60)


def machine(tmp_path: Path, group: str) -> tuple[Path, Path]:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroups / "a" / "b").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:       4096 kB\nMemAvailable:   2048 kB\n")
    (proc / "self" / "cgroup").write_text(f"4:memory:/other\n0::{group}\n")
    return proc, cgroups


def limit(group: Path, maximum: str, current: int, inactive: int) -> None:
    (group / "memory.max").write_text(maximum + "\n")
    (group / "memory.current").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def test_without_a_limit_memory_is_what_the_kernel_says(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "/a/b")
    limit(cgroups / "a", "max", 1, 0)
    assert available_memory(proc, cgroups) == 2048 * 1024


def test_the_tightest_cgroup_above_the_process_counts(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "/a/b")
    limit(cgroups / "a", "1000", 900, 50)
    limit(cgroups / "a" / "b", "100000", 900, 0)
    assert available_memory(proc, cgroups) == 150


def test_a_process_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "/a")
    limit(cgroups / "a", "1000", 1200, 0)
    assert available_memory(proc, cgroups) == 0
