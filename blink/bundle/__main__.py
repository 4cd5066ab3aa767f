"""``python -m blink.bundle``: the same as ``blink bundle``, on a machine that has Python and nothing else."""

import argparse
import sys

from blink.bundle.command import DESCRIPTION, EXIT_CODES, add_commands
from blink.errors import BlinkError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m blink.bundle", description=DESCRIPTION, epilog=EXIT_CODES)
    add_commands(parser)
    args = parser.parse_args()
    try:
        return int(args.run(args))
    except BlinkError as e:
        print(f"blink: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
