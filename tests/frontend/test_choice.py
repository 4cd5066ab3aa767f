"""One answer, from updates to pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.frontend.answers import ChatShape, CompletionShape
from blink.frontend.choice import AnswerOptions, Choice, Piece
from blink.frontend.errors import ApiError
from blink.ring.layout import Reason
from blink.ring.stream import TokenLogprob
from tests.frontend.pieces import PieceTokenizer, cut

FAILURES = [r for r in Reason if r not in (Reason.NONE, Reason.EOS, Reason.STOP_ID, Reason.LENGTH)]


def run(
    pieces: list[bytes],
    options: AnswerOptions,
    *,
    reason: Reason = Reason.LENGTH,
    step: int = 1,
    logprobs: bool = False,
) -> tuple[list[Piece], Choice]:
    """Feed token i = ``pieces[i]`` in updates of ``step`` tokens, the last with ``reason``; what was said."""
    choice = Choice(3, options, PieceTokenizer(pieces))
    tokens, said = list(range(len(pieces))), []
    for at in range(0, max(len(tokens), 1), step):
        part = tokens[at : at + step]
        last = at + step >= len(tokens)
        records = [TokenLogprob(-float(t), [(t, -float(t))]) for t in part] if logprobs else None
        piece = choice.feed(part, records, reason if last else None)
        if piece:
            said.append(piece)
        if piece.finish:
            break
    return said, choice


def whole(said: list[Piece]) -> Piece:
    answer = Piece(3)
    for piece in said:
        answer.add(piece)
    return answer


def words(text: str) -> list[bytes]:
    return [w.encode() for w in text.replace(" ", "| ").split("|")]


def test_a_stop_string_over_tokens_and_updates_is_cut_and_held_back() -> None:
    said, choice = run([b"one\n", b"\nU", b"ser", b": more"], AnswerOptions(stops=("\n\nUser:",)))
    assert [p.text for p in said] == ["one", ""]
    assert (said[-1].finish, choice.tokens) == ("stop", 4)


def test_a_stop_string_may_stay() -> None:
    said, _ = run([b"a", b"EN", b"D", b"x"], AnswerOptions(stops=("END",), include_stop=True))
    assert whole(said).text == "aEND"


def test_what_was_held_back_comes_when_the_answer_ends_otherwise() -> None:
    said, _ = run([b"a", b"EN"], AnswerOptions(stops=("END",)))
    assert (whole(said).text, said[-1].finish) == ("aEN", "length")


def test_an_open_code_point_is_flushed_at_the_end() -> None:
    said, _ = run([b"a\xf0\x9f", b"\x8c"], AnswerOptions())
    assert [p.text for p in said] == ["a", "\ufffd"]


def test_no_piece_while_everything_is_held_back() -> None:
    said, _ = run([b"\xf0", b"\x9f", b"\x8c", b"\xb6"], AnswerOptions(), step=1)
    assert [p.text for p in said] == ["🌶"]


@pytest.mark.parametrize("reason", [Reason.EOS, Reason.STOP_ID])
@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "ab")])
def test_the_token_that_ended_the_answer_is_counted(reason: Reason, include: bool, text: str) -> None:
    said, choice = run([b"a", b"b"], AnswerOptions(include_stop=include), step=2, reason=reason)
    assert (whole(said).text, whole(said).finish, choice.tokens) == (text, "stop", 2)


def test_before_min_tokens_no_stop_string_ends_an_answer() -> None:
    options = AnswerOptions(stops=("b",), min_tokens=2)
    said, choice = run([b"a", b"b", b"c", b"b"], options)
    assert (whole(said).text, whole(said).finish, choice.tokens) == ("abc", "stop", 4)


@pytest.mark.parametrize(
    ("reason", "finish"), [(Reason.EOS, "stop"), (Reason.STOP_ID, "stop"), (Reason.LENGTH, "length")]
)
def test_finish_reasons(reason: Reason, finish: str) -> None:
    assert whole(run([b"a"], AnswerOptions(), reason=reason)[0]).finish == finish


@pytest.mark.parametrize("reason", FAILURES)
def test_every_failure_of_the_ring_is_an_error_with_a_status(reason: Reason) -> None:
    with pytest.raises(ApiError) as e:
        run([b"a"], AnswerOptions(), reason=reason)
    assert e.value.status >= 400
    assert e.value.message


@given(
    st.lists(st.sampled_from([b"a", b"EN", b"D", b"END", b"\xc3", b"\xa9", b"", b" x"]), max_size=12),
    st.integers(1, 4),
    st.sampled_from([(), ("END",), ("D x", "aa")]),
)
def test_every_counted_token_has_its_logprob_beside_its_text(
    pieces: list[bytes], step: int, stops: tuple[str, ...]
) -> None:
    """sglang 2088: one entry for each token, in order, each with its own alternatives and place in the text."""
    said, choice = run(pieces, AnswerOptions(stops=stops), step=step, logprobs=True)
    answer = whole(said)
    assert [e.token for e in answer.logprobs] == list(range(choice.tokens))
    assert all(e.top == [(e.token, -float(e.token))] and e.logprob == -float(e.token) for e in answer.logprobs)
    offsets = [e.offset for e in answer.logprobs]
    assert offsets == sorted(offsets)
    assert all(o <= len(answer.text) for o in offsets)
    # an entry never comes before the text that it begins, nor is it late for it
    text, entries = "", []
    for piece in said:
        text += piece.text
        entries += piece.logprobs
        assert all(e.offset <= len(text) for e in piece.logprobs)
        if not piece.finish:
            assert all(e.offset < len(text) for e in piece.logprobs)


@given(st.binary(max_size=40), st.lists(st.integers(0, 40)), st.integers(1, 5))
def test_a_stream_says_what_the_whole_answer_says(data: bytes, cuts: list[int], step: int) -> None:
    pieces = cut(data, cuts)
    options = AnswerOptions(stops=("ab", "\ufffd\ufffd"))
    one = whole(run(pieces, options, step=len(pieces))[0])
    many = whole(run(pieces, options, step=step)[0])
    assert (one.text, one.finish) == (many.text, many.finish)


CALL = b'<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'


@pytest.mark.parametrize(
    ("reason", "parallel", "calls", "finish"),
    [(Reason.EOS, True, 2, "tool_calls"), (Reason.LENGTH, True, 2, "length"), (Reason.EOS, False, 1, "tool_calls")],
)
def test_tool_calls(reason: Reason, parallel: bool, calls: int, finish: str) -> None:
    options = AnswerOptions(tools=True, parallel_calls=parallel)
    end = [] if reason is Reason.LENGTH else [b"<end>"]
    said, _ = run([b"Hm. ", CALL[:20], CALL[20:], CALL, *end], options, reason=reason)
    answer = whole(said)
    assert (answer.text, len(answer.calls), answer.finish) == ("Hm.", calls, finish)


def test_a_streamed_tool_call_has_index_and_one_id_and_ends_with_tool_calls() -> None:
    """vllm 9209, 37937."""
    said, _ = run([b"Hm. ", CALL, CALL, b"<end>"], AnswerOptions(tools=True), reason=Reason.EOS)
    shape = ChatShape(PieceTokenizer([]), "m", "fp", with_logprobs=False)
    chunks = [c for piece in said for c in shape.chunks(piece)]
    assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [d for c in chunks for d in c["delta"].get("tool_calls", [])]
    assert [d["index"] for d in deltas] == [0, 1]
    assert len({d["id"] for d in deltas}) == 2
    assert [c["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]
    assert chunks[-1]["delta"] == {}


@pytest.mark.parametrize("kind", [ChatShape, CompletionShape])
@given(
    pieces=st.lists(st.sampled_from([b"a", b"EN", b"D", b"\xc3", b"\xa9", b""]), max_size=8),
    step=st.integers(1, 3),
    logprobs=st.booleans(),
)
def test_chunks(kind: type[ChatShape | CompletionShape], pieces: list[bytes], step: int, logprobs: bool) -> None:
    """One terminal chunk, the last; no empty chunk before it; the chunks' text and logprobs are the whole answer's."""
    tokenizer = PieceTokenizer(pieces)
    said, _ = run(pieces, AnswerOptions(stops=("END",)), step=step, logprobs=logprobs)
    shape = kind(tokenizer, "m", "fp", with_logprobs=logprobs)
    chunks = [c for piece in said for c in shape.chunks(piece)]
    assert all(c["index"] == 3 for c in chunks)
    assert [c["finish_reason"] is None for c in chunks] == [True] * (len(chunks) - 1) + [False]
    answer = whole(said)
    expected = shape.whole(3, answer)

    if kind is ChatShape:
        assert [c["delta"].get("role") for c in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
        assert "".join(c["delta"].get("content", "") for c in chunks) == expected["message"]["content"]
        assert all(c["delta"].get("content") or c["logprobs"] for c in chunks[1:-1])
        entries = [e for c in chunks if c["logprobs"] for e in c["logprobs"]["content"]]
        if logprobs:
            assert entries == expected["logprobs"]["content"]
            assert [bytes(e["bytes"]) for e in entries] == pieces[: len(entries)]  # vllm 19177: the true bytes
    else:
        assert "".join(c["text"] for c in chunks) == expected["text"]
        assert all(c["text"] or c["logprobs"] for c in chunks[:-1])
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            if logprobs:
                assert [v for c in chunks if c["logprobs"] for v in c["logprobs"][key]] == expected["logprobs"][key]


def test_minus_infinity_is_a_number_in_json() -> None:
    choice = Choice(0, AnswerOptions(), PieceTokenizer([b"a", b"b"]))
    piece = choice.feed([0], [TokenLogprob(float("-inf"), [(1, float("-inf"))])], Reason.LENGTH)
    chat = ChatShape(PieceTokenizer([b"a", b"b"]), "m", "fp", with_logprobs=True).whole(0, whole([piece]))
    assert chat["logprobs"]["content"][0]["logprob"] == -9999.0
    text = CompletionShape(PieceTokenizer([b"a", b"b"]), "m", "fp", with_logprobs=True).whole(0, whole([piece]))
    assert text["logprobs"]["top_logprobs"] == [{"a": -9999.0, "b": -9999.0}]


def test_the_prompt_is_echoed_once_before_each_answer() -> None:
    shape = CompletionShape(PieceTokenizer([]), "m", "fp", with_logprobs=False, echo=["p0 ", "p1 "])
    chunks = [
        c for p in (Piece(1, "x"), Piece(0, "y"), Piece(1, "z"), Piece(0, "", finish="stop")) for c in shape.chunks(p)
    ]
    assert [(c["index"], c["text"]) for c in chunks] == [(1, "p1 x"), (0, "p0 y"), (1, "z"), (0, "")]
