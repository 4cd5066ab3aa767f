"""What the command line imports, and says of itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What Blink's own modules were loaded once the command line is read, one per line.
LOADED = """
import sys
from blink.cli import parser
try:
    parser().parse_args(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code, stop.code
print(*sorted(name for name in sys.modules if name.split(".")[0] == "blink"), sep="\\n", file=sys.stderr)
"""


def read(*argv: str) -> tuple[str, set[str]]:
    """What reading the command line prints, and the modules of Blink that it loads."""
    command = [sys.executable, "-c", LOADED, *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, set(done.stderr.split())


@pytest.mark.parametrize("argv", ["--help", "ringd --help", "frontend --config FILE", "backend --config FILE"])
def test_a_command_loads_nothing_of_the_others(argv: str) -> None:
    loaded = {name for name in read(*argv.split())[1] if not name.startswith("blink.cli")}
    assert loaded == {"blink", "blink.errors", "blink.output"}


@pytest.mark.parametrize(
    ("argv", "listed"),
    [
        ("--help", ["backend", "bench", "bfb", "bundle", "ringd", "version"]),
        ("bench --help", ["local", "engine", "kernels", "scheduler", "ring", "residency", "load"]),
        ("bench load --help", ["--at-once", "--key-file"]),
        ("bfb --help", ["inspect", "verify"]),
        ("bfb verify --help", ["--sha256"]),
        ("bundle --help", ["verify", "unpack"]),
        ("bundle unpack --help", ["--signers"]),
    ],
)
def test_help_is_whole_whatever_is_loaded_late(argv: str, listed: list[str]) -> None:
    words = read(*argv.split())[0].replace(",", " ").split()
    assert [name for name in listed if name not in words] == []
