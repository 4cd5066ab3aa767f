"""``blink wait``: until a half of the appliance serves, for playbooks and scripts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from blink.config import ApplianceConfig
from blink.errors import BlinkError
from blink.operate.status import status

PAUSE_S = 0.2


def backend(config: ApplianceConfig) -> str | None:
    """None where the scheduler serves the ring, else why not, in a few words."""
    seen = status(config)
    return None if seen["state"] == "up" else f"the ring is {seen['state']} ({seen.get('cause', 'no cause known')})"


def frontend(config: ApplianceConfig) -> str | None:
    """None where the frontend answers GET /health with 200, else what it did instead, in a few words."""
    import httpx  # noqa: PLC0415 - a GPU host has none

    from blink.operate.smoke.http import client_options  # noqa: PLC0415

    try:
        with httpx.Client(**client_options(config.frontend), timeout=5) as client:
            answer = client.get("/health")
    except httpx.HTTPError as e:
        return f"GET /health at port {config.frontend.port} failed ({e})"
    return None if answer.status_code == 200 else f"GET /health answered {answer.status_code}"


HALVES: Mapping[str, Callable[[ApplianceConfig], str | None]] = {"backend": backend, "frontend": frontend}


def run(half: str, config: ApplianceConfig, timeout_s: float) -> int:
    """Return 0 once ``half``, a key of HALVES, serves. Raises BlinkError where it does not within ``timeout_s``."""
    start = time.monotonic()
    while (missing := HALVES[half](config)) is not None:
        if time.monotonic() - start >= timeout_s:
            raise BlinkError(f"waited {timeout_s:g} s for the {half}: {missing}", f"look at the {half}'s log")
        time.sleep(PAUSE_S)
    print(f"the {half} serves")
    return 0
