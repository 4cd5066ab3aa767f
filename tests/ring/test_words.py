"""Packed words and sizes: Python and the C++ that the same declarations generate, compiled, agree."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.bitfields import Bits, PackedWord, Word
from blink.cstruct import Linear, render_header
from blink.ring.layout import EXTENSION_WORDS, LOGPROB_STRIDE, REQUEST_OFF
from blink.ring.words import MASK32, W2, WORDS, Bell, Cancel, after, next_seq, rung, times_of

U32 = st.integers(0, MASK32)
SIZES = (EXTENSION_WORDS, LOGPROB_STRIDE, REQUEST_OFF)


class Altered(PackedWord):
    """w0 with other fields, in another order and of other widths."""

    count = Bits(21)
    extra = Bits(1)
    check = Bits(9, inverse_of="gen")
    reason = Bits(5, saturates=True)
    gen = Bits(9)


ALTERED_SIZE = Linear("altered", 3, {"a": 5, "b": 7}, 16)


def compile_and_run(folder: Path, header: str, body: str) -> list[int]:
    """The numbers that a program with ``header`` prints by ``say``."""
    compiler = shutil.which("g++")
    assert compiler, "the library is built with g++, so it is here"
    (folder / "layout.h").write_text(header)
    (folder / "main.cpp").write_text(
        '#include <cstdio>\n#include "layout.h"\nusing namespace blink;\n'
        'static void say(unsigned long long v) { std::printf("%llu\\n", v); }\n'
        f"int main() {{\n{body}\n}}\n"
    )
    command = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", str(folder / "main.cpp"), "-o", str(folder / "a")]
    subprocess.run(command, check=True, timeout=120)
    done = subprocess.run([folder / "a"], capture_output=True, text=True, check=True, timeout=30)
    return [int(line) for line in done.stdout.split()]


def cases(words: Sequence[Word]) -> list[tuple[Word, dict[str, int]]]:
    """Values for each of ``words``: random ones, and both ends."""
    rng, found = random.Random(1), []
    for word in words:
        names = [f.name for f in word.fields if f.inverse_of is None]
        rows = [[rng.getrandbits(32) for _ in names] for _ in range(40)]
        found += [
            (word, dict(zip(names, row, strict=True))) for row in [*rows, [0] * len(names), [MASK32] * len(names)]
        ]
    return found


def check_agreement(folder: Path, words: Sequence[Word], sizes: Sequence[Linear]) -> None:
    """C++ packs, reads, checks and sizes as Python does."""
    lines, expected = [], []
    for word, values in cases(words):
        packed = word.pack(**values)
        put = " | ".join(f"{word.__name__}::put_{name}({value}u)" for name, value in values.items())
        lines.append(f"say({put});")
        expected.append(packed)
        for name in values:
            lines.append(f"say({word.__name__}::{name}({packed}ull));")
            expected.append(getattr(word(packed), name))
        if any(f.inverse_of for f in word.fields):
            for damaged in (packed, packed ^ 1 << word.fields[0].shift, 0):
                lines.append(f"say({word.__name__}::intact({damaged}ull));")
                expected.append(word(damaged).intact)
    for size in sizes:
        for n in (0, 1, 5, 4095):
            counts = {name: n + i for i, name in enumerate(size.terms)}
            lines.append(f"say({size.name}({', '.join(map(str, counts.values()))}));")
            expected.append(size(**counts))
    header = render_header("a test", "TEST_H", {}, [*words, *sizes])
    assert compile_and_run(folder, header, "\n".join(lines)) == expected


def test_both_languages_pack_alike(tmp_path: Path) -> None:
    check_agreement(tmp_path, WORDS, SIZES)


def test_a_declaration_that_is_changed_changes_both_languages(tmp_path: Path) -> None:
    check_agreement(tmp_path, [Altered], [ALTERED_SIZE])
    values = {"count": 1, "extra": 1, "reason": 99, "gen": 0x1FF}
    assert Altered.pack(**values) == 1 << 24 | 1 << 23 | 0 << 14 | 31 << 9 | 0x1FF
    assert (ALTERED_SIZE(a=0, b=0), ALTERED_SIZE(a=1, b=2)) == (16, 32)


@pytest.mark.parametrize("word", WORDS, ids=lambda w: w.__name__)
def test_values_survive_packing(word: Word) -> None:
    for _, values in cases([word]):
        packed = word.pack(**values)
        for f in word.fields:
            if f.inverse_of is None:
                kept = min(values[f.name], f.limit) if f.saturates else values[f.name] & f.limit
                assert getattr(word(packed), f.name) == kept
                assert f.of(np.array([packed, 0], np.uint64)).tolist() == [kept, 0]
        assert word(packed).intact


def test_a_field_that_is_missing_or_unknown_is_refused() -> None:
    for values in ({"gen": 1}, {"gen": 1, "seq": 2, "more": 3}):
        with pytest.raises(TypeError, match="the fields are"):
            WORDS[3].pack(**values)
    with pytest.raises(TypeError, match="exceed a word"):
        type("Long", (PackedWord,), {"a": Bits(32), "b": Bits(32), "c": Bits(1)})


@given(U32, U32, U32)
def test_times_are_taken_for_their_generation_only(gen: int, first: int, rest: int) -> None:
    word, limit = W2.pack(gen=gen, first=first, rest=rest), W2.first.limit
    assert times_of(word, gen) == (min(first, limit), min(first, limit) + min(rest, limit))
    assert times_of(word, gen + 1) is None


@given(U32, st.integers(0, 63))
def test_a_doorbell_and_a_cancel_show_damage(value: int, bit: int) -> None:
    word = Bell.pack(seq=value)
    assert rung(word) == value
    assert rung(word ^ 1 << bit) is None
    assert rung(0) is None, "never written"
    assert Cancel(Cancel.pack(gen=value)).intact
    assert not Cancel(Cancel.pack(gen=value) ^ 1 << bit).intact


@given(U32, st.integers(1, 2**31 - 1))
def test_order_survives_the_wrap(seq: int, distance: int) -> None:
    later = (seq + distance) & MASK32
    assert after(later, seq)
    assert not after(seq, later)
    assert not after(seq, seq)


@given(U32)
def test_sequence_number_0_is_left_out(seq: int) -> None:
    assert next_seq(seq) == (1 if seq == MASK32 else seq + 1)
