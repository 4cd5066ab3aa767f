"""What a backend says when it begins to serve, and what it promises about the length of a step."""

from __future__ import annotations

import logging

from blink.notify import notify

BUDGET_STEPS = 4
"""A batch may last this many times what the warm-up foretells of the largest: other work may share the machine."""
BUDGET_MIN_S = 1.0

log = logging.getLogger("blink.backend")


def budget_ms(longest_s: float) -> int:
    """How long a batch may last before its backend counts as stalled, where the largest step takes ``longest_s``."""
    return int(1000 * max(BUDGET_MIN_S, BUDGET_STEPS * longest_s))


def serving(name: str, epoch: int, longest_s: float) -> None:
    """Tell the log and the supervisor that the model ``name`` is served."""
    log.info("serving %s as epoch %016x; the largest step takes about %.0f ms", name, epoch, 1000 * longest_s)
    notify(READY="1", STATUS=f"serving {name}")
