"""The one error type that users see: a cause and a remedy."""

from __future__ import annotations


class BlinkError(Exception):
    """Something an operator can act on.

    ``cause`` names the field, file or host; ``remedy`` says what to do. The command line prints both on one line and
    exits with 1; everything else that reaches it is a defect and keeps its traceback.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}: {remedy}" if not cause.endswith(".") else f"{cause} {remedy}")
        self.cause = cause
        self.remedy = remedy
