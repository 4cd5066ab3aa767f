"""Whether the scheduler behind the ring is alive, and how that reads in words."""

from __future__ import annotations

from dataclasses import dataclass

from blink.ring.layout import Phase
from blink.ring.words import Activity

STALL_S = 2.0

_PHASES = {int(p): p for p in Phase}


def stall_after_s(budget_s: float) -> float:
    """How long a beat may stand in a phase of that budget before it means a dead scheduler."""
    return max(STALL_S, 2 * budget_s)


def known_phase(raw: int) -> Phase | None:
    """The phase that the scheduler published; None for one that this version does not know."""
    return _PHASES.get(raw)


def phase_name(phase: Phase | None) -> str:
    """``phase`` as people read it."""
    return "unknown" if phase is None else phase.name.lower()


@dataclass(frozen=True)
class RingHealth:
    """State of every hop behind this worker.

    ``beat_age_s`` is how long the scheduler's beat had stood when it was last read, None before the first reading.
    ``down`` names the hop that does not work and why, and is empty when requests are served.
    """

    link_up: bool
    epoch: int
    beat_age_s: float | None
    stalled: bool
    phase: Phase | None
    free_slots: int
    outstanding: int
    down: str


class Pulse:
    """Follows the scheduler's beat. Time counts only while it is being read."""

    def __init__(self) -> None:
        self.phase: Phase | None = None
        self._beat: int | None = None
        self._changed = self._read = 0.0
        self._budget_s = 0.0

    def beat(self, beat: int, activity: Activity, now: float) -> None:
        """Take in the head of G_p as read at ``now``."""
        if now - self._read > STALL_S:  # nobody looked meanwhile, so the beat may have moved
            self._changed = now
        if beat != self._beat:
            self._beat, self._changed = beat, now
        self.phase = known_phase(activity.phase)
        self._budget_s = activity.budget_ms / 1000
        self._read = now

    def resume(self, now: float) -> None:
        """Start counting afresh after a time without a link."""
        self._changed = self._read = now

    @property
    def age(self) -> float | None:
        """Seconds since the beat changed, as of the last reading; None before the first."""
        return None if self._beat is None else self._read - self._changed

    @property
    def stalled(self) -> bool:
        """Whether the beat stands longer than the scheduler said it might."""
        return self.age is not None and self.age > stall_after_s(self._budget_s)

    def trouble(self) -> str:
        """What is wrong with the scheduler, empty if nothing is."""
        if self.age is None:
            return "scheduler: its state has not been read yet"
        if self.phase is Phase.STOPPED:
            return "scheduler: stopped"
        if self.stalled:
            phase = phase_name(self.phase)
            return f"scheduler: no beat for {self.age:.1f} s in phase {phase}, budget {self._budget_s:.1f} s"
        if self.phase is Phase.DRAINING:
            return "scheduler: draining, takes no new requests"
        if self.phase is Phase.STARTING:
            return "scheduler: starting"
        return "" if self.phase is not None else "scheduler: publishes an unknown phase"
