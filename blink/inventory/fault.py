"""What is wrong with an inventory, in one line that says what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """``where`` is an appliance, a machine, a group or a file."""

    where: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.cause}: {self.remedy}"
