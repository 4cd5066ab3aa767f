"""Log probabilities as the two APIs return them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blink.frontend.detokenizer import TokenBytes

FLOOR = -9999.0  # stands for minus infinity, which JSON cannot say


@dataclass(frozen=True)
class Entry:
    """One generated token: where its text begins in the answer, and (token, log probability) of the alternatives."""

    token: int
    offset: int
    logprob: float
    top: Sequence[tuple[int, float]]


def _text(tokenizer: TokenBytes, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def _named(tokenizer: TokenBytes, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": _text(tokenizer, token),
        "logprob": max(logprob, FLOOR),
        "bytes": list(tokenizer.token_bytes(token)),
    }


def chat_logprobs(tokenizer: TokenBytes, entries: Sequence[Entry]) -> dict[str, Any]:
    """``choices[].logprobs`` of chat completions; ``bytes`` are the token's own, also where they are not UTF-8."""
    return {
        "content": [
            _named(tokenizer, e.token, e.logprob) | {"top_logprobs": [_named(tokenizer, t, p) for t, p in e.top]}
            for e in entries
        ],
        "refusal": None,
    }


def completion_logprobs(tokenizer: TokenBytes, entries: Sequence[Entry]) -> dict[str, Any]:
    """``choices[].logprobs`` of text completions.

    ``top_logprobs`` is keyed by text and always has the chosen token, so two tokens with the same text share the entry
    of the likelier.
    """
    tops = []
    for e in entries:
        top: dict[str, float] = {}
        for token, logprob in (*e.top, (e.token, e.logprob)):
            text = _text(tokenizer, token)
            top[text] = max(top.get(text, FLOOR), logprob, FLOOR)
        tops.append(top)
    return {
        "tokens": [_text(tokenizer, e.token) for e in entries],
        "token_logprobs": [max(e.logprob, FLOOR) for e in entries],
        "top_logprobs": tops,
        "text_offset": [e.offset for e in entries],
    }
