"""scripts/bundle beside another run of it."""

from __future__ import annotations

import fcntl
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ansible.playbook import BIN, ROOT

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize("wait_s", [0, 2])
def test_a_run_that_waits_for_another_says_so_and_gives_up_by_name(tmp_path: Path, wait_s: int) -> None:
    lock = ROOT / "build/lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = subprocess.run(
            [ROOT / "scripts/bundle", tmp_path / "half.tar", PYTHON, platform.machine(), "frontend.txt"],
            env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "BLINK_BUNDLE_WAIT_S": str(wait_s)},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    *waits, refusal = done.stderr.splitlines()
    assert bool(waits) == bool(wait_s)
    assert all(f"s for another run, which packs and holds {lock}" in line for line in waits)
    assert f"another run has held {lock} for {wait_s} s" in refusal
    assert f"fuser {lock} names it" in refusal
