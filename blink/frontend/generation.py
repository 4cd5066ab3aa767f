"""An HTTP request's answers while they are generated: updates of the ring in, pieces of text out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blink.frontend.choice import FINISHED, Choice, Piece
from blink.frontend.errors import ApiError
from blink.frontend.tracker import Job
from blink.ring.stream import Update

GRACE_S = 5.0  # the scheduler ends a request at its deadline; past this much more nobody waits for it


class Generation:
    """The answers of one HTTP request. ``prompt_tokens`` counts every prompt once; ``times`` puts the scheduler's times
    into the usage."""

    def __init__(
        self, job: Job, choices: Sequence[Choice], prompt_tokens: int, timeout_s: float, *, times: bool = False
    ) -> None:
        self.job, self.choices, self.prompt_tokens = job, choices, prompt_tokens
        self._times = times
        self._unfinished = len(choices)
        self._failure: ApiError | None = None
        job.limit(timeout_s + GRACE_S)

    async def next(self) -> list[Piece]:
        """The pieces that came together, each answer's in order; none once every answer is finished.

        An answer that ends by its text (a stop string, a tool call) is cancelled in the ring. Raises ApiError where an
        answer fails, and ClientGone.
        """
        pieces = list[Piece]()
        while self._unfinished and not pieces:
            if self._failure is not None:
                raise self._failure
            for index, update in (await self.job.news()).items():
                if self.choices[index].finish is None:
                    self._take_in(index, update, pieces)
        return pieces

    def _take_in(self, index: int, update: Update, pieces: list[Piece]) -> None:
        """Add what ``update`` says of answer ``index``; text that came with a failure precedes it."""
        failed = update.reason is not None and update.reason not in FINISHED
        try:
            piece = self.choices[index].feed(update.tokens, update.logprobs, None if failed else update.reason)
            if piece:
                pieces.append(piece)
            if piece.finish is not None:
                self._unfinished -= 1
                self.job.finish(index, piece.finish)
            elif failed:
                self.choices[index].feed((), None, update.reason)
        except ApiError as e:
            self._failure = self._failure or e

    def usage(self) -> dict[str, Any]:
        """Token counts so far; with ``times``, at the end the scheduler's too, null where an answer has none."""
        completion = sum(choice.tokens for choice in self.choices)
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }
        if self._times and not self._unfinished:
            usage["scheduler_times"] = [
                t and {"first_token_s": t.first_us / 1e6, "last_token_s": t.last_us / 1e6}
                for t in (track.times for track in self.job.tracks)
            ]
        return usage
