"""From ready to stopped: publishing the ring, saying so, and what is promised about the length of a step."""

from __future__ import annotations

import logging
from typing import Protocol

from blink.backend.shutdown import Stoppable, StopSignals
from blink.config import ApplianceConfig
from blink.notify import notify
from blink.ring.announce import AnnouncedRing
from blink.ring.layout import Geometry
from blink.ring_access import announced

BUDGET_STEPS = 4
"""A batch may last this many times what the warm-up foretells of the largest: other work may share the machine."""
BUDGET_MIN_S = 1.0

log = logging.getLogger("blink.backend")


def budget_ms(longest_s: float) -> int:
    """How long a batch may last before its backend counts as stalled, where the largest step takes ``longest_s``."""
    return int(1000 * max(BUDGET_MIN_S, BUDGET_STEPS * longest_s))


class OwnedRing(AnnouncedRing, Protocol):
    """The memory of a ring as its backend has it: made before anything is loaded, published when all else works."""

    geometry: Geometry
    epoch: int

    def publish(self) -> None:
        """Let those find it who look for it."""

    def close(self) -> None:
        """Give the memory back. No driver may run."""


class Driver(Stoppable, Protocol):
    """What turns a scheduler."""

    def run(self) -> None:
        """Turn it until it says STOP. Raises BlinkError where it cannot go on."""


def serve_until_stopped(
    config: ApplianceConfig, ring: OwnedRing, driver: Driver, stop: StopSignals, longest_s: float
) -> None:
    """Publish ``ring``, tell log and supervisor, and run ``driver``, which ``stop`` ends.

    ``longest_s``: what the largest step takes.
    """
    name = config.model.served_name
    stop.reach(driver)
    ring.publish()
    log.info("serving %s as epoch %016x; the largest step takes about %.0f ms", name, ring.epoch, 1000 * longest_s)
    notify(READY="1", STATUS=f"serving {name}")
    with announced(config, ring):
        driver.run()
