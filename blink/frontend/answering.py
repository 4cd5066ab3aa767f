"""An HTTP request's answers while they are generated: updates of the ring in, pieces of text out, and one end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.types import Receive

from blink.frontend.choice import Choice, Piece
from blink.frontend.errors import ApiError
from blink.frontend.finish import FINISH
from blink.frontend.job import Job, latencies_ms
from blink.frontend.middleware import Record
from blink.frontend.sse import HangUp
from blink.ring.stream import Update

GRACE_S = 5.0  # the scheduler ends a request at its deadline; past this much more nobody waits for it


class Answering:
    """The answers of one HTTP request, from their submission to the end, however that comes.

    Owns the ``job`` in the ring, a choice for each answer, what the access log will say (``record``) and, with
    ``receive``, the watch for a client that hangs up. ``prompt_tokens`` counts every prompt once; ``times`` puts the
    scheduler's times into the usage.
    """

    def __init__(
        self, job: Job, choices: Sequence[Choice], prompt_tokens: int, timeout_s: float, *,
        record: Record | None = None, receive: Receive | None = None, times: bool = False,
    ) -> None:  # fmt: skip
        self.choices, self.prompt_tokens = choices, prompt_tokens
        self._job, self._times = job, times
        self._record = Record("") if record is None else record
        self._record.prompt_tokens = prompt_tokens
        self._hang_up = None if receive is None else HangUp(receive, self.hang_up)
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
            for index, update in (await self._job.news()).items():
                if self.choices[index].finish is None:
                    self._take_in(index, update, pieces)
        return pieces

    async def whole(self) -> list[Piece]:
        """Every answer from its first token to its end, in order. Raises as :meth:`next`."""
        answers = [Piece(choice.index) for choice in self.choices]
        while pieces := await self.next():
            for piece in pieces:
                answers[piece.index].add(piece)
        return answers

    def _take_in(self, index: int, update: Update, pieces: list[Piece]) -> None:
        """Add what ``update`` says of answer ``index``; text that came with a failure precedes it."""
        failed = update.reason is not None and update.reason not in FINISH
        try:
            piece = self.choices[index].feed(update.tokens, update.logprobs, None if failed else update.reason)
            if piece:
                pieces.append(piece)
            if piece.finish is not None:
                self._unfinished -= 1
                self._job.finish(index, piece.finish)
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
                for t in (track.times for track in self._job.tracks)
            ]
        return usage

    def hang_up(self) -> None:
        """The client is gone: cancel everything, and have :meth:`next` raise ClientGone."""
        self._job.hang_up()

    def failed(self, error: ApiError) -> None:
        """Note that the client was told of ``error``."""
        self._record.finish = f"error {error.status}"

    def close(self) -> None:
        """The end: what the ring still does for this request is cancelled, and the record is complete. Idempotent."""
        if self._hang_up is not None:
            self._hang_up.close()
        self._job.close("error")
        record = self._record
        record.gone = record.gone or self._job.gone
        record.latencies_ms = latencies_ms(self._job.tracks)
        record.output_tokens = sum(choice.tokens for choice in self.choices)
        record.finish = record.finish or ",".join(choice.finish or "unfinished" for choice in self.choices)
