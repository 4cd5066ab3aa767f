"""An HTTP request's answers while they are generated: updates of the ring in, pieces of text out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from blink.frontend.choice import Choice, Piece
from blink.frontend.tracker import Job

GRACE_S = 5.0  # the scheduler ends a request at its deadline; past this much more nobody waits for it


class Generation:
    """The answers of one HTTP request. ``prompt_tokens`` counts every prompt once."""

    def __init__(self, job: Job, choices: Sequence[Choice], prompt_tokens: int, timeout_s: float) -> None:
        self.job, self.choices, self.prompt_tokens = job, choices, prompt_tokens
        self._end = time.monotonic() + timeout_s + GRACE_S

    async def pieces(self) -> AsyncIterator[Piece]:
        """Every piece of every answer, each answer's in order, until all are finished.

        An answer that ends by its text (a stop string, a tool call) is cancelled in the ring. Raises ApiError where an
        answer fails, and ClientGone.
        """
        unfinished = len(self.choices)
        while unfinished:
            index, update = await self.job.next(max(0.0, self._end - time.monotonic()))
            choice = self.choices[index]
            if choice.finish is not None:
                continue
            piece = choice.feed(update.tokens, update.logprobs, update.reason)
            if piece.finish is not None:
                unfinished -= 1
                self.job.finish(index, piece.finish)
            if piece:
                yield piece

    def usage(self) -> dict[str, Any]:
        """Token counts so far."""
        completion = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }
