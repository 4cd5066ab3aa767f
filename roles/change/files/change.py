"""Take or give up the right to change one half of an appliance, and keep the record of changes.

change.py begin|end|note --lock DIR --audit FILE --record JSON

The record has at least `run`. Only one run holds the lock; the same run may take it twice. `note` is for a
change that needs no lock. Prints who holds it and exits
with 1 where that is another run. Standard library only: it runs before anything is installed.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

TRIES = 20


def holder(lock):
    """The record of who holds ``lock``; it is written right after the directory is made, so a moment is waited for."""
    for _ in range(TRIES):
        with contextlib.suppress(OSError, ValueError):
            return json.loads((lock / "holder").read_text())
        if not lock.exists():
            return None
        time.sleep(0.1)
    return {"run": "unknown", "operator": "unknown", "time": "unknown"}


def take(lock, record):
    """Make ``record`` the holder, or return who is."""
    for _ in range(TRIES):
        try:
            lock.mkdir(mode=0o755)
        except FileExistsError:
            held = holder(lock)
            if held is None:
                continue
            return None if held.get("run") == record["run"] else held
        part = lock / f"holder.{os.getpid()}"
        part.write_text(json.dumps(record))
        part.rename(lock / "holder")
        return None
    return {"run": "unknown", "operator": "unknown", "time": "unknown"}


def note(audit, record):
    """Append ``record`` in one write, so that lines of several runs do not mix."""
    audit.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    line = json.dumps(record, ensure_ascii=False) + "\n"
    descriptor = os.open(audit, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["begin", "end", "note"])
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--audit", type=Path, required=True)
    parser.add_argument("--record", type=json.loads, required=True)
    args = parser.parse_args()
    record = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": args.verb, **args.record}
    if args.verb == "begin":
        held = take(args.lock, record)
        if held is not None:
            print(f"run {held.get('run')} of {held.get('operator')} since {held.get('time')} ({held.get('verb', '?')})")
            return 1
    note(args.audit, record)
    if args.verb == "end":
        held = holder(args.lock)
        if held is not None and held.get("run") == record["run"]:
            shutil.rmtree(args.lock, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
