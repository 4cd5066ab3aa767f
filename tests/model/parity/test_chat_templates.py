"""Every chat template that llama.cpp's tests collect, and the default model's, against transformers' rendering."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the parity suite compares with torch and transformers: `make parity`")

from transformers.utils.chat_template_utils import render_jinja_template

from blink.errors import BlinkError
from blink.model.chat import ChatTemplate
from tests.model.parity.llama_cpp import models

pytestmark = pytest.mark.parity

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Get the weather <now> & "here"',
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Où?"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
CALL = {
    "id": "call_123456", "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}},
}  # fmt: skip
TEXT_CALL = {**CALL, "function": {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one": ([_user("Hi")], {}),
    "no generation prompt": ([_user("Hi")], {"add_generation_prompt": False}),
    "system": ([{"role": "system", "content": "Be brief."}, _user("Hi <|im_end|> é")], {}),
    "turns": ([_user("Hi"), {"role": "assistant", "content": "Hello!"}, _user("  How are you?\n\n")], {}),
    "thinking": ([_user("Hi")], {"enable_thinking": True}),
    "no thinking": ([_user("Hi")], {"enable_thinking": False}),
    "tools": ([_user("Weather?")], {"tools": TOOLS}),
    "a call": (
        [
            _user("Weather?"),
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call_123456", "content": '{"sky": "blue"}'},
        ],
        {"tools": TOOLS},
    ),
    "a call without content, arguments as text": (
        [
            _user("Weather?"),
            {"role": "assistant", "content": None, "tool_calls": [TEXT_CALL]},
            {"role": "tool", "tool_call_id": "call_123456", "content": "blue"},
            {"role": "assistant", "content": "It is blue."},
            _user("Thanks"),
        ],
        {"tools": TOOLS},
    ),
    "reasoning": (
        [_user("2+2?"), {"role": "assistant", "reasoning_content": "Easy.", "content": "4"}, _user("Sure?")],
        {},
    ),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]}], {}),
    "two users": ([_user("Hi"), _user("Hello?")], {}),
    "empty": ([], {}),
    "unknown role": ([{"role": "narrator", "content": "Once"}], {}),
}


def _templates() -> dict[str, str]:
    found = {p.stem: p.read_text(encoding="utf-8") for p in sorted((models() / "templates").glob("*.jinja"))}
    assert len(found) > 50
    return found


def _theirs(source: str, messages: list[dict[str, Any]], kwargs: dict[str, Any]) -> str | Exception:
    from transformers.utils import chat_template_utils as theirs

    arguments = {"add_generation_prompt": True, "tools": None, **kwargs}
    # What apply_chat_template does to messages before it renders them.
    messages = theirs._alias_reasoning_fields(theirs._normalize_chat_messages(messages))
    try:
        rendered, _ = render_jinja_template([messages], chat_template=source, **arguments, **SPECIAL)
        return rendered[0]
    except Exception as e:
        return e


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_renderings(conversation, smollm):
    messages, kwargs = CONVERSATIONS[conversation]
    sources = _templates() | {"default model": smollm.chat_template().source}
    rendered = 0
    for name, source in sources.items():
        theirs = _theirs(source, messages, kwargs)
        template = ChatTemplate(source, special_tokens=SPECIAL, name=name)
        if isinstance(theirs, Exception):
            with pytest.raises(BlinkError, match=name.split("(")[0].replace(".", r"\.")):
                template.render(messages, **kwargs)
        else:
            assert template.render(messages, **kwargs) == theirs, name
            rendered += 1
    assert rendered > (5 if conversation in ("unknown role", "empty") else 25)
