"""Stop strings over the borders of tokens and chunks."""

from __future__ import annotations

from collections.abc import Sequence


def open_length(text: str, patterns: Sequence[str]) -> int:
    """Length of the longest suffix of ``text`` with which one of ``patterns`` may begin, short of all of it."""
    longest = max(map(len, patterns))
    for length in range(min(len(text), longest - 1), 0, -1):
        suffix = text[-length:]
        if any(p.startswith(suffix) for p in patterns):
            return length
    return 0


class StopMatcher:
    """Find the first stop string in a text that arrives in pieces.

    First is the one whose end comes first; of two that end together, the longer. That depends on the text alone and
    not on how it was cut. Text that may be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that is safe to deliver after ``text``; sets ``matched`` at a match, after which nothing follows."""
        if self.matched is not None:
            return ""
        text = self._held + text
        if not self._stops:
            return text
        found = [(at + len(s), at, s) for s in self._stops if (at := text.find(s)) >= 0]
        if found:
            end, start, self.matched = min(found)
            self._held = ""
            return text[: end if self._include else start]
        keep = open_length(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once no more text will come."""
        held, self._held = self._held, ""
        return held
