"""python -m blink.inventory SOURCE…, for playbooks: they run where Ansible is installed and Blink may not be."""

from __future__ import annotations

import sys
from pathlib import Path

from blink.errors import BlinkError
from blink.inventory.check import run

if __name__ == "__main__":
    try:
        sys.exit(run([Path(source) for source in sys.argv[1:]]))
    except BlinkError as e:
        print(f"blink: {e}", file=sys.stderr)
        sys.exit(1)
