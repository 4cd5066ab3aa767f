"""The two shapes of an answer: chat.completion and text_completion, whole and as chunks of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from blink.frontend.choice import Piece
from blink.frontend.detokenizer import TokenBytes
from blink.frontend.encode import dumps
from blink.frontend.logprobs import Entry, chat_logprobs, completion_logprobs

Json = dict[str, Any]


class Shape:
    """What both shapes share. ``with_logprobs`` says that the request asked for them."""

    prefix = object_name = chunk_name = ""

    def __init__(self, tokenizer: TokenBytes, model: str, fingerprint: str, *, with_logprobs: bool) -> None:
        self._tokenizer, self._with_logprobs = tokenizer, with_logprobs
        self.id = f"{self.prefix}-{secrets.token_hex(16)}"
        self._head = {"created": int(time.time()), "model": model, "system_fingerprint": fingerprint}
        # The same in every event of a stream, and most of its bytes.
        self._event = f'data: {dumps({"id": self.id, "object": self.chunk_name, **self._head})[:-1]},"choices":['
        self._begun = set[int]()  # answers of which something was said

    def document(self, choices: list[Json]) -> Json:
        """The whole answer around ``choices``."""
        return {"id": self.id, "object": self.object_name, **self._head, "choices": choices}

    def event(self, choices: str, usage: str | None) -> str:
        """One event of a stream around ``choices`` and ``usage``, both JSON; without usage where it is None."""
        end = "]}\n\n" if usage is None else f'],"usage":{usage}}}\n\n'
        return f"{self._event}{choices}{end}"

    def events(self, piece: Piece, usage: str | None) -> str:
        """The events that say ``piece``."""
        if piece.is_text and piece.index in self._begun:
            return self.event(self.text(piece.index, piece.text), usage)
        self._begun.add(piece.index)
        return "".join(self.event(dumps(choice), usage) for choice in self.chunks(piece))

    def whole(self, index: int, answer: Piece) -> Json:
        """A choice of a whole answer."""
        raise NotImplementedError

    def chunks(self, piece: Piece) -> list[Json]:
        """The choices with which a stream says ``piece``, one per chunk; the last has the finish reason, if any."""
        raise NotImplementedError

    def text(self, index: int, text: str) -> str:
        """What :meth:`chunks` gives for a piece that is only text and not an answer's first, as JSON."""
        raise NotImplementedError


class ChatShape(Shape):
    """Chat completions. A stream says the role first, the text and calls as deltas, and the end with an empty delta."""

    prefix, object_name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: TokenBytes, model: str, fingerprint: str, *, with_logprobs: bool) -> None:
        super().__init__(tokenizer, model, fingerprint, with_logprobs=with_logprobs)
        self._calls: dict[int, int] = {}  # calls said so far, by answer

    def _logprobs(self, entries: Sequence[Entry]) -> Json | None:
        return chat_logprobs(self._tokenizer, entries) if self._with_logprobs else None

    def whole(self, index: int, answer: Piece) -> Json:
        """A choice of a whole answer."""
        message: Json = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.calls:
            message["content"] = answer.text or None
            message["tool_calls"] = [call.body() for call in answer.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": answer.finish,
        }

    def chunks(self, piece: Piece) -> list[Json]:
        """See :meth:`Shape.chunks`."""
        deltas: list[Json] = []
        if piece.index not in self._calls:
            self._calls[piece.index] = 0
            deltas.append({"role": "assistant", "content": ""})
        if piece.text:
            deltas.append({"content": piece.text})
        for call in piece.calls:
            deltas.append({"tool_calls": [{"index": self._calls[piece.index], **call.body()}]})
            self._calls[piece.index] += 1
        said = len(deltas)
        if piece.finish is not None or (piece.logprobs and not piece.text):
            deltas.append({})
        chunks: list[Json] = [
            {"index": piece.index, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas
        ]
        if piece.logprobs:
            # with their text; without any, with the empty delta
            at = next((i for i, d in enumerate(deltas) if d.get("content")), said)
            chunks[at]["logprobs"] = self._logprobs(piece.logprobs)
        if piece.finish is not None:
            chunks[-1]["finish_reason"] = piece.finish
        return chunks

    def text(self, index: int, text: str) -> str:
        """See :meth:`Shape.text`."""
        return f'{{"index":{index},"delta":{{"content":{dumps(text)}}},"logprobs":null,"finish_reason":null}}'


class CompletionShape(Shape):
    """Text completions. ``echo`` holds the text before each answer, by index; empty where none was asked for."""

    prefix, object_name, chunk_name = "cmpl", "text_completion", "text_completion"

    def __init__(
        self, tokenizer: TokenBytes, model: str, fingerprint: str, *, with_logprobs: bool, echo: Sequence[str] = ()
    ) -> None:
        super().__init__(tokenizer, model, fingerprint, with_logprobs=with_logprobs)
        self._echo = dict(enumerate(echo))

    def _choice(self, index: int, text: str, entries: Sequence[Entry], finish: str | None, asked: bool) -> Json:
        logprobs = completion_logprobs(self._tokenizer, entries) if asked else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def whole(self, index: int, answer: Piece) -> Json:
        """A choice of a whole answer."""
        text = self._echo.get(index, "") + answer.text
        return self._choice(index, text, answer.logprobs, answer.finish, self._with_logprobs)

    def chunks(self, piece: Piece) -> list[Json]:
        """See :meth:`Shape.chunks`."""
        text = self._echo.pop(piece.index, "") + piece.text
        chunks: list[Json] = []
        if text or (piece.logprobs and piece.finish is None):
            chunks.append(self._choice(piece.index, text, piece.logprobs, None, bool(piece.logprobs)))
        if piece.finish is not None:
            rest = [] if chunks else piece.logprobs
            chunks.append(self._choice(piece.index, "", rest, piece.finish, bool(rest)))
        return chunks

    def text(self, index: int, text: str) -> str:
        """See :meth:`Shape.text`."""
        return f'{{"index":{index},"text":{dumps(text)},"logprobs":null,"finish_reason":null}}'
