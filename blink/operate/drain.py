"""``blink drain`` and ``blink undrain``: an appliance out of service, and back, without failing a request.

While it is drained `GET /ready` answers 503, so load balancers send no new requests, and what still comes is served.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from blink.config import ApplianceConfig
from blink.drained import drain_file, drain_reason
from blink.errors import BlinkError
from blink.operate.http import requests_running

STILL_RUNNING = 3  # exit code: drained, and the limit has passed
PAUSE_S = 0.2
QUIET_S = 1.0  # how long no request may run: between two of a client's, none does


def undrain(config: ApplianceConfig) -> int:
    """Take requests again, whether it was drained or not; the exit code."""
    reason, file = drain_reason(config), drain_file(config.instance.run_dir)
    try:
        file.unlink(missing_ok=True)
    except OSError as e:
        raise BlinkError(f"{file}: {e.strerror}", "run as the user of the frontend") from None
    print("takes requests again" if reason is not None else "was not drained")
    return 0


def mark(run_dir: Path, reason: str) -> None:
    """Have the appliance of ``run_dir``, which is made where it is missing, be drained; the first reason counts.

    Needs no configuration, so that an appliance can be drained before it is deployed. Raises BlinkError.
    """
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as e:
        raise BlinkError(f"{run_dir}: {e.strerror}", "run as the user of the frontend") from None
    if not drain_file(run_dir).exists():
        _ask(run_dir, reason)


def _ask(run_dir: Path, reason: str) -> None:
    file = drain_file(run_dir)
    try:
        file.write_text(f"{reason}\n", encoding="utf-8")
    except OSError as e:
        raise BlinkError(
            f"{file}: {e.strerror}", "deploy the appliance first, and run as the user of the frontend"
        ) from None


def drain(config: ApplianceConfig, *, reason: str, settle_s: float, timeout_s: float) -> int:
    """Ask for the drain, give load balancers ``settle_s`` to notice, and return 0 once no request runs.

    Idempotent. Returns STILL_RUNNING where requests run after ``timeout_s``; the appliance stays drained. Raises
    BlinkError where it cannot be drained or does not say what it runs.
    """
    start = time.monotonic()
    if drain_reason(config) is None:
        _ask(config.instance.run_dir, reason)
    quiet_since: float | None = None
    while True:
        running, now = requests_running(config), time.monotonic()
        quiet_since = None if running else quiet_since or now
        if quiet_since is not None and now - quiet_since >= QUIET_S and now - start >= settle_s:
            print("drained: no request runs")
            return 0
        if now - start >= timeout_s:
            print(
                f"blink: {running} requests still run {timeout_s:g} s after the drain began: wait with a longer "
                "--timeout, or stop the frontend, which ends them with an error",
                file=sys.stderr,
            )
            return STILL_RUNNING
        time.sleep(PAUSE_S)
