"""``python -m blink.bfb``: the same as ``blink bfb``, on a machine that has Python and nothing else."""

import sys

from blink.bfb.command import DESCRIPTION, EXIT_CODES, add_commands
from blink.standalone import run

if __name__ == "__main__":
    sys.exit(run("python -m blink.bfb", add_commands, description=DESCRIPTION, epilog=EXIT_CODES))
