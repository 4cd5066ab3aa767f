"""``python -m blink.PART``, for parts that run where there is Python and nothing else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from blink.errors import BlinkError


def run(prog: str, add_commands: Callable[[argparse.ArgumentParser], None], *, description: str, epilog: str) -> int:
    """Run the command that the process was given; returns the exit code. A BlinkError is one line on stderr."""
    parser = argparse.ArgumentParser(prog=prog, description=description, epilog=epilog)
    add_commands(parser)
    args = parser.parse_args()
    try:
        return int(args.run(args))
    except BlinkError as e:
        print(f"blink: {e}", file=sys.stderr)
        return 1
