"""One answer in the making: from the tokens of a ring request to the pieces that a client receives."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from blink.frontend.detokenizer import Detokenizer, TokenBytes
from blink.frontend.errors import from_reason
from blink.frontend.finish import ENDED_BY_TOKEN, FINISH
from blink.frontend.logprobs import Entry
from blink.frontend.stop_strings import StopMatcher
from blink.frontend.toolcalls import ToolCall, ToolCallParser
from blink.ring.layout import Reason
from blink.ring.stream import TokenLogprob

TAIL_TOKENS = 8  # of the prompt; more than a code point ever takes


@dataclass(frozen=True)
class AnswerOptions:
    """What the request says about the text of an answer."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    min_tokens: int = 0
    tools: bool = False
    parallel_calls: bool = True
    own_text: bool = False  # not the continuation of the prompt's text


@dataclass(slots=True)
class Piece:
    """News of one answer, or all of it where :meth:`add` gathered them. ``finish`` is set on the last piece only."""

    index: int
    text: str = ""
    logprobs: list[Entry] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    finish: str | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.logprobs or self.calls or self.finish)

    def add(self, later: Piece) -> None:
        """Append the news that followed these of the same answer."""
        self.text += later.text
        self.logprobs += later.logprobs
        self.calls += later.calls
        self.finish = later.finish or self.finish

    @property
    def is_text(self) -> bool:
        """Whether there is text and nothing else."""
        return bool(self.text) and not (self.logprobs or self.calls or self.finish)


class Choice:
    """The answer with index ``index``.

    ``tokens`` counts what was generated up to the end of the answer: the token that ends it is counted, what the
    scheduler produced after a stop string is not. There is one logprob entry per counted token; entries are held back
    together with their text.
    """

    def __init__(self, index: int, options: AnswerOptions, tokenizer: TokenBytes, prompt: Sequence[int] = ()) -> None:
        self.index = index
        self.tokens = 0
        self.calls = 0
        self.finish: str | None = None
        self._options = options
        tail = prompt[-TAIL_TOKENS:]
        self._detokenizer = Detokenizer(
            tokenizer, skip_special=options.skip_special, prompt=tail, own_text=options.own_text
        )
        self._matcher = StopMatcher(options.stops, include=options.include_stop)
        self._tools = ToolCallParser() if options.tools else None
        self._entries: deque[Entry] = deque()
        self._decoded = 0  # characters that the detokenizer has given
        self._released = 0  # of them, characters that left the matcher

    def feed(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] | None, reason: Reason | None) -> Piece:
        """What ``tokens`` and the end ``reason`` add. Raises ApiError where ``reason`` is a failure."""
        piece = Piece(self.index)
        text = ""
        unsaid = len(tokens) - 1 if reason in ENDED_BY_TOKEN and not self._options.include_stop else None
        for i, token in enumerate(tokens):
            if self.finish is not None:
                break
            text += self._token(token, None if logprobs is None else logprobs[i], said=i != unsaid)
        if reason is not None and self.finish is None:
            if reason not in FINISH:
                raise from_reason(reason)
            self.finish = FINISH[reason]
        if self.finish is not None:
            text += self._match(self._detokenizer.flush()) + self._matcher.flush()
        self._released += len(text)
        if self._tools is None:
            piece.text = text
        else:
            self._parse_calls(self._tools, text, piece)
        if self.finish is not None:
            # a token of the stop string begins behind the text that was kept
            piece.logprobs = [replace(e, offset=min(e.offset, self._released)) for e in self._entries]
            piece.finish = "tool_calls" if self.calls and self.finish == "stop" else self.finish
            self.finish = piece.finish
        else:
            while self._entries and self._entries[0].offset < self._released:
                piece.logprobs.append(self._entries.popleft())
        return piece

    def _token(self, token: int, logprob: TokenLogprob | None, *, said: bool) -> str:
        """Count and decode one token; the text that may be delivered, none of a token that is not ``said``."""
        self.tokens += 1
        if logprob is not None:
            self._entries.append(Entry(token, self._decoded, logprob.logprob, logprob.top))
        if not said:
            return ""
        text = self._detokenizer.feed(token)
        if self.tokens <= self._options.min_tokens:
            self._decoded += len(text)
            return text
        return self._match(text)

    def _match(self, text: str) -> str:
        self._decoded += len(text)
        text = self._matcher.feed(text)
        if self._matcher.matched is not None:
            self.finish = "stop"
        return text

    def _parse_calls(self, parser: ToolCallParser, text: str, piece: Piece) -> None:
        piece.text, piece.calls = parser.feed(text)
        if piece.calls and not self._options.parallel_calls:
            piece.calls, self.finish = piece.calls[:1], "stop"
        elif self.finish is not None:
            piece.text += parser.flush()
        self.calls += len(piece.calls)
