"""End every process that was started for one configuration, and print their ids: end_leftovers.py CONFIG SECONDS

A supervisor that was killed leaves its services behind. They, and what they started, carry BLINK_CONFIG in their
environment. SIGTERM first, SIGKILL after SECONDS. Standard library only.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path


def started_for(config):
    """Ids of this user's processes (of all, for root) that were started for ``config``."""
    entry = f"BLINK_CONFIG={config}".encode()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if entry in (process / "environ").read_bytes().split(b"\0"):
                found.add(int(process.name))
        except OSError:  # gone, or another user's
            continue
    return found


def end(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def main(config, seconds):
    first = started_for(config)
    end(first, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while (left := started_for(config)) and time.monotonic() < deadline:
        time.sleep(0.1)
    end(left, signal.SIGKILL)
    if first:
        print(*sorted(first))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
