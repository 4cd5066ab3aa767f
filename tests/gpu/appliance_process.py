"""A backend on the GPU with the synthetic engine, as a process: ``DIRECTORY DRIVER``.

Prints a line when it serves. Drains when its standard input ends, and prints the scheduler's counters as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from blink.bench.synthetic import SyntheticAppliance
from blink.gpu.cuda import Device
from tests.gpu.storm import CONFIG, GEOMETRY


def main() -> int:
    """Serve until standard input ends."""
    appliance = SyntheticAppliance(Device(), sys.argv[2], CONFIG, GEOMETRY, Path(sys.argv[1]), nodes=20)
    print("serving", flush=True)
    sys.stdin.read()
    appliance.stop()
    print(json.dumps(appliance.scheduler.counters()), flush=True)
    appliance.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
