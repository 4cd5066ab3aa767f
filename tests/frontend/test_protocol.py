"""Request bodies: what is honoured has a range, what is not implemented is refused by name, the rest is ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blink.engine.seam.batch import MAX_BIAS, MAX_EOS, MAX_STOP
from blink.frontend import protocol
from blink.frontend.errors import ApiError
from blink.frontend.protocol import Body, ChatBody, CompletionBody, parse
from blink.frontend.refused import REFUSED

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def chat(**fields: Any) -> ChatBody:
    return parse(ChatBody, json.dumps(CHAT | fields).encode())


def text(**fields: Any) -> CompletionBody:
    return parse(CompletionBody, json.dumps(TEXT | fields).encode())


def refused(kind: type[Body], base: dict[str, Any], **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as e:
        parse(kind, json.dumps(base | fields).encode())
    assert e.value.status == 400
    return e.value


@pytest.mark.parametrize("field", sorted(REFUSED))
def test_a_known_field_that_is_not_implemented_is_refused_by_name(field: str) -> None:
    kind, base = (CompletionBody, TEXT) if field == "suffix" else (ChatBody, CHAT)
    error = refused(kind, base, **{field: {"anything": 1}})
    assert error.param == field
    assert field in error.message
    assert error.code == "unsupported_parameter"


@pytest.mark.parametrize("field", sorted(REFUSED))
def test_leaving_it_out_in_other_words_is_not_using_it(field: str) -> None:
    for neutral in (None, *REFUSED[field]):
        chat(**{field: neutral})


def test_zero_is_not_false_and_one_is_not_true() -> None:
    assert refused(ChatBody, CHAT, prompt_logprobs=0).param == "prompt_logprobs"
    assert refused(ChatBody, CHAT, length_penalty=True).param == "length_penalty"


def test_response_format() -> None:
    chat(response_format={"type": "text"})
    for kind in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}):
        assert refused(ChatBody, CHAT, response_format=kind).param == "response_format"


def test_what_load_generators_send_is_accepted() -> None:
    body = chat(stop=None, ignore_eos=True, foo={"bar": 1}, min_tokens=0, stream_options=None, best_of=None, priority=3)
    assert body.ignore_eos
    assert body.stop_strings == ()


def test_every_field_may_be_null() -> None:
    for kind, base in ((ChatBody, CHAT), (CompletionBody, TEXT)):
        optional = {name: None for name, f in kind.model_fields.items() if not f.is_required()}
        parse(kind, json.dumps(base | optional).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.1), ("temperature", -0.1), ("temperature", "0.5"), ("temperature", True), ("top_p", 0),
        ("top_p", 1.5), ("top_k", -2), ("top_k", 1.5), ("min_p", 2), ("n", 0), ("n", 1000), ("n", True),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1 << 40), ("seed", 1 << 64), ("seed", "1"),
        ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0), ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": 101}), ("logit_bias", {"-1": 1}), ("logit_bias", [1]), ("stop", 3), ("stop", [1]),
        ("stop", ""), ("stop", ["a"] * 17), ("stop_token_ids", [-1]), ("stop_token_ids", "1"), ("stream", "yes"),
        ("stream", 1), ("min_tokens", -1), ("min_tokens", 1 << 16), ("user", 3),
        ("stream_options", {"include_usage": True}),
        ("model", 3), ("ignore_eos", "true"),
    ],
)  # fmt: skip
def test_a_value_out_of_range_names_its_field(field: str, value: object) -> None:
    for kind, base in ((ChatBody, CHAT), (CompletionBody, TEXT)):
        error = refused(kind, base, **{field: value})
        assert (error.param or "").startswith(field)
        assert error.message.startswith(field)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ],
)
def test_chat_only(fields: dict[str, Any], param: str) -> None:
    assert refused(ChatBody, CHAT, **fields).param == param


def test_logprobs_without_top_logprobs() -> None:
    """vllm 3179, 4795."""
    assert chat(logprobs=True).logprobs
    chat(logprobs=False, top_logprobs=0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"echo": True, "logprobs": 1}, "echo"), ({"best_of": 2}, "best_of"), ({"logprobs": True}, "logprobs")],
)
def test_completions_only(fields: dict[str, Any], param: str) -> None:
    assert refused(CompletionBody, TEXT, **fields).param == param


def test_best_of_n_asks_for_nothing_more() -> None:
    assert text(best_of=2, n=2).n == 2


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"model": "\\ud800"}', b"{" * 5000, b'{"a":' * 5000,
        b'{"model": "m", "messages": [{"role": "user", "content": NaN}], "temperature": NaN}',
    ],
)  # fmt: skip
def test_what_is_not_a_json_object_is_a_400(data: bytes) -> None:
    with pytest.raises(ApiError) as e:
        parse(ChatBody, data)
    assert e.value.status == 400


def test_missing_fields_are_named() -> None:
    assert refused(ChatBody, {"messages": CHAT["messages"]}).param == "model"
    assert refused(CompletionBody, {"model": "m"}).param == "prompt"


def test_the_limits_are_the_schedulers() -> None:
    assert (protocol.MAX_STOP_IDS, protocol.MAX_BIASES) == (MAX_STOP - MAX_EOS, MAX_BIAS)
