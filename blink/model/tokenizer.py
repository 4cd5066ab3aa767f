"""Text to token ids and back, over the ``tokenizers`` library."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from blink.errors import BlinkError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """Character to byte of byte-level BPE: printable Latin-1 stands for itself, the rest begins at U+0100 (GPT-2)."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [b for b in range(256) if b not in kept]
    return {chr(b): b for b in kept} | {chr(256 + i): b for i, b in enumerate(moved)}


_ALPHABET = _byte_level_alphabet()


class Tokenizer:
    """The tokenizer of a prepared model.

    Plain attributes: ``bos_id`` (None where the model has none), ``eos_ids`` (tokens that end a generation),
    ``special_tokens`` (such as ``{"bos_token": "<s>"}``, for chat templates), ``vocab_size`` (the largest id plus one)
    and ``strips_first_space`` (whether :meth:`decode` leaves out one space at the beginning, which
    :meth:`token_bytes` of the first token has; SentencePiece).
    """

    def __init__(
        self, path: Path, *, special_tokens: dict[str, str] | None = None, eos_ids: Sequence[int] = ()
    ) -> None:
        """Load a tokenizer.json. Raises BlinkError naming the file where it is missing or not usable."""
        try:
            source = path.read_text(encoding="utf-8")
            self._tokenizer = tokenizers.Tokenizer.from_str(source)
        except OSError as e:
            raise BlinkError(f"{path}: {e.strerror}", "prepare the model again") from None
        except Exception as e:  # the library raises plain Exception
            raise BlinkError(f"{path} is not a tokenizer ({_one_line(e)})", "prepare the model again") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._added = self._tokenizer.get_added_tokens_decoder()
        self._decoder_kinds = _kinds(json.loads(source).get("decoder"))
        self.strips_first_space = bool(self._decoder_kinds & {"Strip", "Metaspace"})
        self.special_tokens = dict(special_tokens or {})
        self.eos_ids = list(eos_ids)
        bos = self.special_tokens.get("bos_token")
        self.bos_id: int | None = None if bos is None else self._tokenizer.token_to_id(bos)
        self._bytes: dict[int, bytes] = {}  # found so far
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; texts of special tokens in it become those tokens.

        ``add_special_tokens`` adds what the model wants around a text (its BOS token, where it has one); pass False
        for the output of a chat template. A lone surrogate, which no UTF-8 text has, counts as U+FFFD.
        """
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        except (UnicodeEncodeError, TypeError):
            valid = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            return list(self._tokenizer.encode(valid, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD, and ids without a token become nothing."""
        known = [i for i in ids if 0 <= i < self.vocab_size]
        return str(self._tokenizer.decode(known, skip_special_tokens=skip_special_tokens))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, which need not be whole characters; empty for an id without a token.

        The space that SentencePiece puts before a text is part of its first token here, and not of :meth:`decode`.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._find_bytes(token_id)
            if 0 <= token_id < self.vocab_size:
                self._bytes[token_id] = known
        return known

    def _find_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return str(added.content).encode()
        token = self._tokenizer.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if token is None:
            return b""
        if "ByteLevel" in self._decoder_kinds:
            # A character outside the alphabet cannot come from merges: such a token is its own text.
            if all(c in _ALPHABET for c in token):
                return bytes(_ALPHABET[c] for c in token)
            return token.encode()
        if "ByteFallback" in self._decoder_kinds and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.replace("▁", " ").encode()

    def is_special(self, token_id: int) -> bool:
        """Whether the token is left out of text (control tokens, such as the end of a turn)."""
        added = self._added.get(token_id)
        return added is not None and bool(added.special)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """All ids for which :meth:`is_special` holds."""
        return frozenset(i for i, t in self._added.items() if t.special)


def _kinds(decoder: Any) -> set[str]:
    """Type names of a decoder and of the decoders inside it, from tokenizer.json."""
    if not isinstance(decoder, dict):
        return set()
    inside = [_kinds(d) for d in decoder.get("decoders", [])]
    return {str(decoder.get("type"))}.union(*inside)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
