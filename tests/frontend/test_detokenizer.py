"""Text from tokens: whatever the borders, the text is that of all bytes at once."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blink.frontend.detokenizer import Detokenizer, incomplete_tail
from tests.frontend.pieces import PieceTokenizer, cut

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(TEXT, st.lists(st.integers(0, 160)))
def test_any_split_of_any_text_gives_the_text(text: str, cuts: list[int]) -> None:
    pieces = cut(text.encode(), cuts)
    detokenizer = Detokenizer(PieceTokenizer(pieces))
    said = [detokenizer.feed(i) for i in range(len(pieces))]
    assert "".join(said) + detokenizer.flush() == text
    assert not any("\ufffd" in s for s in said if "\ufffd" not in text)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60)))
@example(b"\xc3a", [1])  # ASCII behind an open code point, which few random examples have
def test_any_split_of_any_bytes_gives_what_decoding_them_at_once_gives(data: bytes, cuts: list[int]) -> None:
    pieces = cut(data, cuts)
    detokenizer = Detokenizer(PieceTokenizer(pieces))
    text = "".join(detokenizer.feed(i) for i in range(len(pieces))) + detokenizer.flush()
    assert text == data.decode("utf-8", "replace")


@given(st.binary(max_size=60), st.lists(st.integers(0, 60)))
def test_what_was_said_stays_true(data: bytes, cuts: list[int]) -> None:
    """Never a code point that a later token changes: each prefix is a prefix of the whole."""
    pieces = cut(data, cuts)
    detokenizer = Detokenizer(PieceTokenizer(pieces))
    said, whole = "", data.decode("utf-8", "replace")
    for i in range(len(pieces)):
        said += detokenizer.feed(i)
        assert whole.startswith(said)


@given(TEXT, TEXT, st.integers(0, 8))
def test_a_prompt_that_ends_inside_a_code_point_is_completed_and_not_repeated(before: str, after: str, at: int) -> None:
    """vllm 48853: the answer begins with the rest of the prompt's character; nothing else of the prompt comes again."""
    data = (before + "🌶" + after).encode()
    split = len(before.encode()) + min(at, 4)
    tokenizer = PieceTokenizer([data[:split], data[split:]])
    detokenizer = Detokenizer(tokenizer, prompt=[0])
    text = detokenizer.feed(1) + detokenizer.flush()
    assert text == (after if min(at, 4) == 4 else "🌶" + after)


def test_an_open_code_point_of_the_prompt_is_dropped_where_the_answer_does_not_go_on_with_it() -> None:
    tokenizer = PieceTokenizer([b"x\xf0\x9f", b"yes"])
    assert Detokenizer(tokenizer, prompt=[0]).feed(1) == "yes"
    assert Detokenizer(tokenizer, prompt=[0]).flush() == ""


def test_special_tokens_are_skipped_only_where_asked() -> None:
    tokenizer = PieceTokenizer([b"a", b"<end>", b"b"], special=[1])
    assert "".join(map(Detokenizer(tokenizer).feed, range(3))) == "ab"
    assert "".join(map(Detokenizer(tokenizer, skip_special=False).feed, range(3))) == "a<end>b"


@pytest.mark.parametrize(
    ("data", "tail"),
    [
        (b"", b""),
        (b"abc", b""),
        ("é".encode(), b""),
        (b"a\xc3", b"\xc3"),
        (b"\xf0\x9f\x8c", b"\xf0\x9f\x8c"),
        (b"\xff", b""),
    ],
)
def test_incomplete_tail(data: bytes, tail: bytes) -> None:
    assert incomplete_tail(data) == tail


@pytest.mark.parametrize(
    ("strips", "own_text", "text"), [(True, True, "The  end"), (True, False, " The  end"), (False, True, " The  end")]
)
def test_the_space_before_a_text_belongs_to_a_continuation_only(strips: bool, own_text: bool, text: str) -> None:
    """SentencePiece puts one there; token 0 is a control token, which has no text that could begin with it."""
    tokenizer = PieceTokenizer([b"<s>", b" The", b"  end"], special=[0], strips_first_space=strips)
    detokenizer = Detokenizer(tokenizer, own_text=own_text)
    assert "".join(map(detokenizer.feed, range(3))) + detokenizer.flush() == text
