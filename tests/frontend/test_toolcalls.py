"""Tool calls in text that arrives in pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.frontend.toolcalls import ToolCall, ToolCallParser, makes_calls, parse_call
from tests.frontend.pieces import cut

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
PARSED = ToolCall("get_weather", '{"city": "Zürich"}')
FRAGMENTS = st.lists(st.sampled_from([CALL, "<tool_call>", "</tool_call>", "{}", "text", " ", "\n", "<", "<tool", "ü"]))


def parse(text: str, cuts: list[int]) -> tuple[str, list[ToolCall]]:
    parser, content, calls = ToolCallParser(), "", list[ToolCall]()
    for piece in cut(text, cuts):
        more, found = parser.feed(piece)
        content, calls = content + more, calls + found
    return content + parser.flush(), calls


@given(FRAGMENTS, st.lists(st.integers(0, 300)))
def test_how_the_text_is_cut_makes_no_difference(fragments: list[str], cuts: list[int]) -> None:
    text = "".join(fragments)
    assert parse(text, cuts) == parse(text, [])


@given(st.text(max_size=50).filter(lambda t: "<tool_call>" not in t), st.lists(st.integers(0, 50)))
def test_text_without_calls_is_untouched(text: str, cuts: list[int]) -> None:
    assert parse(text, cuts) == (text, [])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (CALL, "", [PARSED]),
        (f"Let me look.\n{CALL}\n{CALL}\n", "Let me look.", [PARSED, PARSED]),
        (f"{CALL}\nDone.", "Done.", [PARSED]),
        ("<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", []),
        ('<tool_call>{"name": "f", "arg', '<tool_call>{"name": "f", "arg', []),
        ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
        ("a <tool", "a <tool", []),
    ],
)
def test_content_and_calls(text: str, content: str, calls: list[ToolCall]) -> None:
    assert parse(text, []) == (content, calls)


def test_each_call_has_its_own_id() -> None:
    _, calls = parse(CALL + CALL, [])
    assert calls[0].id != calls[1].id
    assert all(c.id.startswith("call_") for c in calls)


@pytest.mark.parametrize("arguments", [{"a": [1, None, "ü"]}, {}, "already text"])
def test_arguments_are_json_text(arguments: object) -> None:
    call = parse_call(json.dumps({"name": "f", "arguments": arguments}))
    assert call is not None
    assert (call.arguments if isinstance(arguments, str) else json.loads(call.arguments)) == arguments


@pytest.mark.parametrize(
    ("template", "known"),
    [
        (
            '{% if tools %}<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}{% endif %}',
            True,
        ),
        ("{% if tools %}<tool_call><function=f><parameter=arguments>{% endif %}", False),
        ("{% if tools %}<tool_call>f<arg_key>arguments</arg_key>{% endif %}", False),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
    ],
)
def test_templates(template: str, known: bool) -> None:
    assert makes_calls(template) is known


@pytest.mark.parametrize("text", ["[" * 100_000, '{"name": 3}', '{"name": ""}', "null", ""])
def test_what_is_no_call(text: str) -> None:
    assert parse_call(text) is None
