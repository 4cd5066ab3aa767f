"""Events are put together from prepared parts: they must say what the documents of the same pieces would."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from blink.frontend.answers import ChatShape, CompletionShape, Shape
from blink.frontend.choice import Piece
from blink.frontend.logprobs import Entry
from blink.frontend.toolcalls import ToolCall
from tests.frontend.pieces import PieceTokenizer

ENTRIES = st.lists(st.builds(Entry, st.just(0), st.integers(0, 99), st.floats(-50, 0), st.just(())), max_size=2)
PIECES = st.lists(
    st.builds(
        Piece,
        index=st.integers(0, 2),
        text=st.text(max_size=6),
        logprobs=ENTRIES | st.just([]),
        calls=st.just([]) | st.just([ToolCall("f", "{}")]),
        finish=st.none() | st.just("stop"),
    ),
    max_size=6,
)


def shapes(kind: str) -> Shape:
    tokenizer = PieceTokenizer([b"\xe2\x82"])
    if kind == "chat":
        return ChatShape(tokenizer, 'na"me', "fp", with_logprobs=True)
    return CompletionShape(tokenizer, 'na"me', "fp", with_logprobs=True, echo=["P\n", ""])


@given(st.sampled_from(["chat", "text"]), PIECES, st.none() | st.just("null") | st.just('{"total_tokens":3}'))
def test_events_say_what_the_chunks_of_their_pieces_are(kind: str, pieces: list[Piece], usage: str | None) -> None:
    said, model = shapes(kind), shapes(kind)
    for piece in pieces:
        events = said.events(piece, usage).split("\n\n")
        assert events.pop() == ""
        documents = [json.loads(e.removeprefix("data: ")) for e in events]
        assert all(e.startswith("data: {") and "\n" not in e for e in events)
        expected = [expect(said, choice, usage) for choice in model.chunks(piece)]
        assert documents == expected


def expect(shape: Shape, choice: dict[str, Any], usage: str | None) -> dict[str, Any]:
    document = {**shape.document([choice]), "object": shape.chunk_name}
    return document if usage is None else {**document, "usage": json.loads(usage)}


def test_a_usage_event_has_no_choices() -> None:
    event = shapes("text").event("", '{"total_tokens":3}')
    document = json.loads(event.removeprefix("data: "))
    assert (document["choices"], document["usage"]) == ([], {"total_tokens": 3})
