"""Taking an appliance out of service without failing a request.

A file in the run directory asks for it. While it is there `GET /ready` answers 503, so load balancers send no new
requests, and what still comes is served. It outlives the processes: an appliance that is restarted for an upgrade, or
that reboots, stays drained until somebody undrains it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from blink.config import ApplianceConfig
from blink.errors import BlinkError

FILE = "drain"
STILL_RUNNING = 3  # exit code: drained, and the limit has passed
PAUSE_S = 0.2
QUIET_S = 1.0  # how long no request may run: between two of a client's, none does


def drain_reason(config: ApplianceConfig) -> str | None:
    """Why the appliance is drained; None where it is not."""
    try:
        return _path(config).read_text(encoding="utf-8").strip() or "no reason was given"
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        return f"{_path(config)} cannot be read ({e})"


def _path(config: ApplianceConfig) -> Path:
    return config.instance.run_dir / FILE


def undrain(config: ApplianceConfig) -> int:
    """Take requests again, whether it was drained or not; the exit code."""
    reason = drain_reason(config)
    try:
        _path(config).unlink(missing_ok=True)
    except OSError as e:
        raise BlinkError(f"{_path(config)}: {e.strerror}", "run as the user of the frontend") from None
    print("takes requests again" if reason is not None else "was not drained")
    return 0


def drain(config: ApplianceConfig, *, reason: str, settle_s: float, timeout_s: float) -> int:
    """Ask for the drain, give load balancers ``settle_s`` to notice, and return 0 once no request runs.

    Idempotent. Returns STILL_RUNNING where requests run after ``timeout_s``; the appliance stays drained. Raises
    BlinkError where it cannot be drained or does not say what it runs.
    """
    start = time.monotonic()
    if drain_reason(config) is None:
        try:
            _path(config).write_text(f"{reason}\n", encoding="utf-8")
        except OSError as e:
            raise BlinkError(
                f"{_path(config)}: {e.strerror}", "deploy the appliance first, and run as the user of the frontend"
            ) from None
    quiet_since: float | None = None
    while True:
        running, now = _running(config), time.monotonic()
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


def _running(config: ApplianceConfig) -> int:
    """Requests of all workers; none where no frontend listens."""
    import httpx  # noqa: PLC0415 - a GPU host has none

    from blink.operate.smoke.http import client_options  # noqa: PLC0415

    try:
        with httpx.Client(**client_options(config.frontend), timeout=5) as client:
            text = client.get("/metrics").raise_for_status().text
    except httpx.ConnectError:
        return 0
    except httpx.HTTPError as e:
        raise BlinkError(
            f"the frontend does not say what it runs ({type(e).__name__}: {e})", "look at its log; restart it"
        ) from None
    names = ("blink_requests_waiting{", "blink_requests_running{")
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in text.splitlines() if line.startswith(names))
