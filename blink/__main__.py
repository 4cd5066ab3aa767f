"""``python -m blink``."""

import sys

from blink.cli import main

sys.exit(main())
