from __future__ import annotations

import json
from datetime import datetime

import pytest

from blink.errors import BlinkError
from blink.model.chat import ChatTemplate

CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}"
)
USER = [{"role": "user", "content": "Hi"}]


def render(source: str, messages=USER, **kwargs) -> str:
    return ChatTemplate(source, special_tokens={"bos_token": "<s>"}).render(messages, **kwargs)


def test_chatml():
    assert render(CHATML) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_the_default_model(smollm):
    prompt = smollm.chat_template().render(USER)
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    tokenizer = smollm.tokenizer()
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    assert [i for i in ids if tokenizer.is_special(i)] == [1, 2, 1, 2, 1]


def test_blocks_leave_no_white_space():
    source = (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend"
    )
    assert render(source) == "Hi\nend"


def test_special_tokens_tools_and_other_variables():
    assert render("{{ bos_token }}|{{ tools }}|{{ documents }}|{{ enable_thinking }}", enable_thinking=False) == (
        "<s>|None|None|False"
    )
    assert render("{{ bos_token }}{{ eos_token }}") == "<s>"
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert json.loads(render("{{ tools | tojson }}", tools=tools)) == tools
    assert render("{{ tools is none }}", tools=[]) == "True"


def test_tojson_is_plain_json():
    message = [{"role": "user", "content": "<é&'\">"}]
    assert render("{{ messages[0] | tojson }}", message) == '{"role": "user", "content": "<é&\'\\">"}'
    assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=2, sort_keys=true) }}") == (
        '{\n  "a": [\n    2\n  ],\n  "b": 1\n}'
    )
    assert render("{{ {'a': 1} | tojson(separators=(',', ':')) }}") == '{"a":1}'
    assert render("{{ 'é' | tojson(ensure_ascii=true) }}") == '"\\u00e9"'


def test_loop_controls_namespace_and_generation_tag():
    source = (
        "{% for x in range(9) %}{% if x == 1 %}{% continue %}{% elif x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}"
    )
    assert render(source) == "023"
    assert (
        render("{% set ns = namespace(n=1) %}{% for x in range(3) %}{% set ns.n = ns.n * 2 %}{% endfor %}{{ ns.n }}")
        == "8"
    )
    assert render("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "abHic"


def test_the_date():
    before = datetime.now().strftime("%Y-%m-%d")
    assert render("{{ strftime_now('%Y-%m-%d') }}") in (before, datetime.now().strftime("%Y-%m-%d"))


def test_none_is_left_out():
    message = [{"role": "assistant", "content": None, "tool_calls": None}]
    assert render("{{ messages[0] }}", message) == "{'role': 'assistant'}"


def test_reasoning_under_any_name():
    for name in ("reasoning_content", "thinking", "reasoning"):
        message = [{"role": "assistant", "content": "x", name: "because"}]
        assert render("{{ messages[0].reasoning_content }} {{ messages[0].thinking }}", message) == "because because"


def test_messages_are_not_changed():
    messages = [{"role": "user", "content": "Hi", "name": None}]
    render("{{ messages }}", messages)
    assert messages == [{"role": "user", "content": "Hi", "name": None}]


def test_a_template_that_refuses_says_why():
    with pytest.raises(BlinkError, match="Roles must alternate") as e:
        render("{{ raise_exception('Roles must alternate') }}")
    assert e.value.remedy == "change the messages"


@pytest.mark.parametrize("source", ["{{ messages[0].content + 1 }}", "{{ messages[5].content.x }}", "{{ 1 / 0 }}"])
def test_a_template_that_fails_is_an_error(source):
    with pytest.raises(BlinkError, match="the chat template"):
        render(source)


def test_a_syntax_error_names_the_line():
    with pytest.raises(BlinkError, match=r"my\.jinja, line 3"):
        ChatTemplate("a\nb\n{% if %}", name="my.jinja")


def test_unlimited_recursion_is_an_error():
    with pytest.raises(BlinkError, match="RecursionError"):
        render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ [].append.__self__.__class__ }}",
        "{{ messages | attr('__class__') }}",
        "{{ ''['__class__'] }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ ('{0.__class__.__init__}' | format(1)) and '{x.__class__}'.format_map({'x': 1}) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ dict.__class__ }}",
        "{{ dict.mro() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ joiner.__init__.__builtins__ }}",
        "{% set x = namespace(__class__=1) %}{{ x.__class__ }}",
        "{{ (messages | map(attribute='__class__') | list)[0].__name__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
        "{{ range(10000000) | list | length }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{% do messages.clear() %}",
    ],
)
def test_the_sandbox_holds(source):
    """Nothing of the interpreter is reached: an error, or at most an undefined value."""
    try:
        out = render(source)
    except BlinkError:
        return
    assert out.strip() in ("", "[]"), out
