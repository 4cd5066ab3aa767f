"""Tokens to text, one token at a time, without ever cutting a code point."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol


class TokenBytes(Protocol):
    """The part of :class:`blink.model.tokenizer.Tokenizer` that detokenizing needs."""

    strips_first_space: bool

    def token_bytes(self, token_id: int, /) -> bytes: ...

    def is_special(self, token_id: int, /) -> bool: ...


def incomplete_tail(data: bytes) -> bytes:
    """The bytes at the end of ``data`` that begin a UTF-8 code point and do not finish it; usually none."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return decoder.getstate()[0]


class Detokenizer:
    """Incremental UTF-8 decoding of a token stream.

    The text of all calls together equals decoding all bytes at once, with U+FFFD for what is not UTF-8. ``prompt`` is
    the end of the prompt: where it stops inside a code point, the answer's first bytes complete that code point and
    nothing else of the prompt is emitted. ``own_text`` says that the answer is a text of its own and not the rest of
    one, so that the space which SentencePiece puts before every text is left out, as decoding the whole answer would.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        *,
        skip_special: bool = True,
        prompt: Iterable[int] = (),
        own_text: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = own_text and tokenizer.strips_first_space
        self._open = False  # whether the decoder may hold bytes of an unfinished code point
        self._tail = incomplete_tail(b"".join(self._bytes(t) for t in prompt))

    def _bytes(self, token: int) -> bytes:
        return b"" if self._skip_special and self._tokenizer.is_special(token) else self._tokenizer.token_bytes(token)

    def feed(self, token: int) -> str:
        """The text that ``token`` completes; empty while a code point is open."""
        data = self._bytes(token)
        if self._strip and data:
            data = data.removeprefix(b" ")
            self._strip = False
        if self._tail and data:
            if 0x80 <= data[0] < 0xC0:  # a continuation byte: the answer goes on inside the prompt's code point
                data = self._tail + data
            self._tail = b""
        if data.isascii() and not self._open:
            return data.decode("ascii")
        if data:
            self._open = not data.isascii()
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is still open at the end, as U+FFFD."""
        return self._decoder.decode(b"", final=True)
