"""``blink wait``: until a half of the appliance serves, for playbooks and scripts."""

from __future__ import annotations

import time
from collections.abc import Callable

from blink.config import ApplianceConfig
from blink.errors import BlinkError

PAUSE_S = 0.2


def wait(half: str, config: ApplianceConfig, trouble: Callable[[ApplianceConfig], str | None], timeout_s: float) -> int:
    """Return 0 once ``half`` serves, which ``trouble`` says by None; else it says why not, in a few words.

    Raises BlinkError where it does not serve within ``timeout_s``.
    """
    start = time.monotonic()
    while (missing := trouble(config)) is not None:
        if time.monotonic() - start >= timeout_s:
            raise BlinkError(f"waited {timeout_s:g} s for the {half}: {missing}", f"look at the {half}'s log")
        time.sleep(PAUSE_S)
    print(f"the {half} serves")
    return 0
