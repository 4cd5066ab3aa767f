"""What a check is, and how one is run so that a hung appliance cannot hang it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from blink.errors import BlinkError

GRACE_S = 2.0
C = TypeVar("C")


class CheckError(Exception):
    """A check found a fault: ``detail`` is what was seen, ``cause`` the likely cause and what to look at."""

    def __init__(self, detail: str, cause: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.cause = cause


class Deadline:
    """The time a check has. Waiting code names what it waits for, so that running out of time says it."""

    def __init__(self, seconds: float, cause: str) -> None:
        self._start = time.monotonic()
        self._seconds = seconds
        self._cause = cause
        self.waiting_for = "its first answer"

    def left(self, waiting_for: str) -> float:
        """Seconds left for ``waiting_for``. Raises CheckError where there are none."""
        self.waiting_for = waiting_for
        left = self._start + self._seconds - time.monotonic()
        if left <= 0:
            raise self.expired()
        return left

    def expired(self) -> CheckError:
        """The error of a check whose time is up."""
        return CheckError(f"waited {self._seconds:g} s for {self.waiting_for}", self._cause)


@dataclass(frozen=True)
class Check(Generic[C]):
    """One check over a context C.

    ``run`` returns what it saw, in a few words, and raises CheckError for a fault. ``hop`` is the part that the check
    is the first to reach; ``stuck`` is the likely cause where it runs out of time.
    """

    name: str
    hop: str
    summary: str
    timeout_s: float
    stuck: str
    run: Callable[[C, Deadline], str]


@dataclass(frozen=True)
class Outcome:
    """What became of one check. ``cause`` is empty where it passed."""

    name: str
    hop: str
    passed: bool
    seconds: float
    detail: str
    cause: str = ""


def run_check(check: Check[C], context: C) -> Outcome:
    """Run ``check`` within its time, and GRACE_S for a wait that does not watch its deadline."""
    deadline = Deadline(check.timeout_s, check.stuck)
    found: list[str | CheckError] = []

    def body() -> None:
        try:
            found.append(check.run(context, deadline))
        except CheckError as e:
            found.append(e)
        except BlinkError as e:
            found.append(CheckError(e.cause, e.remedy))
        except Exception as e:
            found.append(CheckError(f"{type(e).__name__}: {e}", "the check itself failed on an unexpected answer"))

    start = time.monotonic()
    # A thread that is still stuck when the command ends must not keep it from ending.
    thread = threading.Thread(target=body, name=check.name, daemon=True)
    thread.start()
    thread.join(check.timeout_s + GRACE_S)
    seconds = time.monotonic() - start
    result = found[0] if found else deadline.expired()
    if isinstance(result, CheckError):
        return Outcome(check.name, check.hop, False, seconds, result.detail, result.cause)
    return Outcome(check.name, check.hop, True, seconds, result)
