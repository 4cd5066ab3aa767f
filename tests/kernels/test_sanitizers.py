"""The scheduler under ThreadSanitizer, AddressSanitizer and UndefinedBehaviorSanitizer, in programs built here."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels"
TSAN_REPORT = 66  # ThreadSanitizer's exit code

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

Program = Callable[..., subprocess.CompletedProcess[str]]


def build(folder: Path, source: str, *flags: str) -> Program:
    """Compile ``source`` of this folder; the result runs it with arguments."""
    program = folder / source.removesuffix(".cpp")
    command = ["g++", "-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *flags, f"-I{KERNELS}"]
    subprocess.run([*command, "-o", program, HERE / source, "-pthread"], check=True, timeout=120)

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        command = [str(program), *map(str, args)]
        env = {**os.environ, "TSAN_OPTIONS": f"exitcode={TSAN_REPORT}"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=env)
        if "unexpected memory mapping" in done.stderr:  # old ThreadSanitizer, new kernel: needs a fixed address layout
            command = ["setarch", platform.machine(), "-R", *command]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=env)
        return done

    return run


@pytest.fixture(scope="module")
def tsan(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return build(tmp_path_factory.mktemp("tsan"), "tsan_scheduler.cpp", "-fsanitize=thread")


@pytest.fixture(scope="module")
def asan(tmp_path_factory: pytest.TempPathFactory) -> Program:
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    return build(tmp_path_factory.mktemp("asan"), "fuzz_scheduler.cpp", *flags)


@pytest.mark.parametrize("driver", ["stepwise", "resident"])
def test_scheduler_threads_engine_and_frontend_do_not_race(tsan: Program, driver: str) -> None:
    done = tsan(300, driver)
    assert done.returncode == 0, done.stderr
    assert "300 requests" in done.stdout


def test_threadsanitizer_notices_a_status_that_does_not_order_its_tokens(tmp_path: Path) -> None:
    broken = build(tmp_path, "tsan_scheduler.cpp", "-fsanitize=thread", "-DBLINK_TEST_BREAK_RELEASE")
    done = broken(50)
    assert done.returncode == TSAN_REPORT, done.stderr
    assert "data race" in done.stderr


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_content_of_f_leads_out_of_bounds(asan: Program, seed: int) -> None:
    done = asan(seed, 20_000)
    assert done.returncode == 0, done.stderr
