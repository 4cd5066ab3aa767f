"""One backend per ring directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blink.backend.exclusive import RingLock
from blink.errors import BlinkError

HOLD = """
import sys
from pathlib import Path
from blink.backend.exclusive import RingLock
with RingLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_backend_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    ring_dir = tmp_path / "ring"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(ring_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlinkError, match="another backend serves this ring: stop it first"):
            RingLock(ring_dir)
        holder.kill()
        holder.wait(10)
    with RingLock(ring_dir):
        pass


def test_rings_are_removed_at_both_ends_and_nothing_else(tmp_path: Path) -> None:
    def make() -> None:
        for name in ("G", "F", ".G.0123", ".F.0123", "other"):
            (tmp_path / name).touch()

    make()
    with RingLock(tmp_path):
        assert [p.name for p in tmp_path.iterdir()] == ["other"]
        make()
    assert [p.name for p in tmp_path.iterdir()] == ["other"]


def test_a_refused_backend_removes_nothing(tmp_path: Path) -> None:
    with RingLock(tmp_path):
        (tmp_path / "G").touch()
        with pytest.raises(BlinkError, match="another backend"):
            RingLock(tmp_path)
        assert (tmp_path / "G").exists()


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BlinkError, match=r"instance\.ring_dir .*/file/ring: Not a directory"):
        RingLock(tmp_path / "file" / "ring")
