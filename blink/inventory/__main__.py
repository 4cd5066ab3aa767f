"""python -m blink.inventory SOURCE…, for playbooks: they run where Ansible is installed and Blink may not be."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from blink.errors import BlinkError
from blink.inventory.check import run
from blink.output import with_json

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m blink.inventory")
    parser.add_argument("sources", type=Path, nargs="+", metavar="SOURCE")
    with_json(parser)
    args = parser.parse_args()
    try:
        sys.exit(run(args.sources, json_path=args.json))
    except BlinkError as e:
        print(f"blink: {e}", file=sys.stderr)
        sys.exit(1)
