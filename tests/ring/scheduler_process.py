"""The scheduler core with the toy model over a ring in shared memory, as a process: ``DIRECTORY SECONDS [RUN_DIR]``.

Prints one line when the ring is published, and the counters as JSON when it was told to stop (a line on stdin). With
RUN_DIR it announces the ring to the blink-ringd there.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

from blink.backend.scheduler.config import SchedulerConfig
from blink.backend.scheduler.host import Scheduler
from blink.engine.seam.batch import Control, Kind
from blink.engine.seam.buffers import BatchBuffers
from blink.ring.announce import Announcer
from blink.ring.layout import Geometry
from blink.ring.shm import RingObjects
from tests.ring.toy import run_model

CONFIG = SchedulerConfig(
    lanes=16, records=64, page_tokens=8, pages=64, max_context=256, vocab=997, batch_tokens=64, ext_words=600
)
GEOMETRY = Geometry(64, 1, 1 << 16, 1 << 16)


def main() -> int:
    """Serve until told to stop, or for as many seconds as were allowed."""
    directory, seconds = Path(sys.argv[1]), float(sys.argv[2])
    ring = RingObjects(directory, CONFIG.header(GEOMETRY, queue_cap=CONFIG.records, fingerprint=bytes(32)))
    buffers = BatchBuffers(CONFIG.dims)
    scheduler = Scheduler(CONFIG, GEOMETRY, ring.g, ring.f, buffers)
    ring.publish()
    announcer = Announcer(Path(sys.argv[3]), ring) if len(sys.argv) > 3 else nullcontext()
    print("published", flush=True)

    def stop() -> None:
        sys.stdin.readline()
        scheduler.request(Control.DRAIN)

    threading.Thread(target=stop, daemon=True).start()
    end = time.monotonic() + seconds
    with announcer:
        while time.monotonic() < end:
            match scheduler.step().kind:
                case Kind.PREFILL | Kind.DECODE:
                    run_model(buffers, CONFIG.vocab)
                case Kind.STOP:
                    scheduler.check_integrity()
                    print(json.dumps(scheduler.counters()), flush=True)
                    return 0
                case _:
                    time.sleep(0.0002)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
