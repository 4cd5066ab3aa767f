"""``python -m blink.bundle``: the same as ``blink bundle``, on a machine that has Python and nothing else."""

import sys

from blink.bundle.command import DESCRIPTION, EXIT_CODES, add_commands
from blink.standalone import run

if __name__ == "__main__":
    sys.exit(run("python -m blink.bundle", add_commands, description=DESCRIPTION, epilog=EXIT_CODES))
