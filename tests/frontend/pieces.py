"""Tokens whose bytes a test chooses: for what no small model would say."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T", str, bytes)


class PieceTokenizer:
    """Token i stands for ``pieces[i]``."""

    def __init__(
        self, pieces: Sequence[bytes], special: Iterable[int] = (), *, strips_first_space: bool = False
    ) -> None:
        self._pieces, self._special = pieces, frozenset(special)
        self.strips_first_space = strips_first_space

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special


def cut(data: T, cuts: Iterable[int]) -> list[T]:
    """``data`` in pieces that end at ``cuts``, empty pieces included."""
    at = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(at)]
