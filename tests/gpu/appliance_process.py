"""A backend on the GPU with the synthetic engine, as a process: ``DIRECTORY DRIVER``.

Prints a line when it serves, and the scheduler's counters as JSON when it has ended after a SIGTERM.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path

from blink.backend.gpu.loop_watcher import LoopWatcher
from blink.gpu.cuda import Device
from blink.instruments.synthetic import SyntheticAppliance
from tests.gpu.storm import CONFIG, GEOMETRY


def main() -> int:
    """Serve until told to stop."""
    logging.basicConfig(level=logging.INFO)
    folder, driver_name = Path(sys.argv[1]), sys.argv[2]
    appliance = SyntheticAppliance(Device(), driver_name, CONFIG, GEOMETRY, folder, nodes=20, start=False)
    driver = LoopWatcher(appliance.loop, drain_timeout_s=5)
    signal.signal(signal.SIGTERM, lambda *_: driver.stop())
    print("serving", flush=True)
    driver.run()
    print(json.dumps(appliance.scheduler.counters()), flush=True)
    appliance.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
