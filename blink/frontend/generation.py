"""An HTTP request's answers while they are generated: updates of the ring in, pieces of text out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from blink.frontend.choice import FINISHED, Choice, Piece
from blink.frontend.errors import ApiError
from blink.frontend.tracker import Job
from blink.ring.stream import Update

GRACE_S = 5.0  # the scheduler ends a request at its deadline; past this much more nobody waits for it


class Generation:
    """The answers of one HTTP request. ``prompt_tokens`` counts every prompt once."""

    def __init__(self, job: Job, choices: Sequence[Choice], prompt_tokens: int, timeout_s: float) -> None:
        self.job, self.choices, self.prompt_tokens = job, choices, prompt_tokens
        job.limit(timeout_s + GRACE_S)

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """Every piece of every answer, each answer's in order, until all are finished; those that came together.

        An answer that ends by its text (a stop string, a tool call) is cancelled in the ring. Raises ApiError where an
        answer fails, and ClientGone.
        """
        unfinished = len(self.choices)
        while unfinished:
            pieces = list[Piece]()
            try:
                for index, update in (await self.job.news()).items():
                    choice = self.choices[index]
                    for piece in _fed(choice, update) if choice.finish is None else ():
                        if piece.finish is not None:
                            unfinished -= 1
                            self.job.finish(index, piece.finish)
                        if piece:
                            pieces.append(piece)
            except ApiError:
                if pieces:
                    yield pieces
                raise
            if pieces:
                yield pieces

    def usage(self) -> dict[str, Any]:
        """Token counts so far."""
        completion = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }


def _fed(choice: Choice, update: Update) -> Iterator[Piece]:
    """What ``update`` adds to ``choice``; text that came with a failure precedes it."""
    if update.tokens and update.reason is not None and update.reason not in FINISHED:
        yield choice.feed(update.tokens, update.logprobs, None)
        update.tokens, update.logprobs = [], None
    if choice.finish is None:
        yield choice.feed(update.tokens, update.logprobs, update.reason)
