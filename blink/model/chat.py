"""Chat templates: messages to the text of a prompt, as transformers' ``apply_chat_template`` renders them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser

from blink.errors import BlinkError


class ChatTemplate:
    """A compiled template. It runs in a sandbox: it comes from a checkpoint, and may not reach beyond its input."""

    def __init__(
        self,
        source: str,
        *,
        tools_source: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        name: str = "the chat template",
    ) -> None:
        """Compile ``source``, and ``tools_source`` where a checkpoint has a template of its own for tools.

        ``special_tokens`` (``bos_token`` and so on) are variables of them.
        Raises BlinkError with the line where a template has a syntax error.
        """
        self.source, self.name = source, name
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = _ENVIRONMENT.from_string(source)
            self._tools_template = self._template if tools_source is None else _ENVIRONMENT.from_string(tools_source)
        except jinja2.TemplateSyntaxError as e:
            raise BlinkError(f"{name}, line {e.lineno}: {e.message}", "correct the template") from None
        except RecursionError:
            raise BlinkError(f"{name} is nested too deeply", "simplify the template") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt for ``messages`` (plain JSON values); ``kwargs`` are further variables of the template.

        Keys whose value is None are left out of a message, since many templates would print "None".
        Raises BlinkError with the template's own message where it refuses the messages.
        """
        variables = {
            **self._special_tokens,
            "messages": [_message(m) for m in messages],
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **kwargs,
        }
        try:
            return (self._tools_template if tools else self._template).render(variables)
        except jinja2.exceptions.SecurityError as e:
            raise BlinkError(f"{self.name} tried what the sandbox forbids ({e})", "use another template") from None
        except jinja2.TemplateError as e:
            raise BlinkError(f"{self.name} refuses these messages ({e})", "change the messages") from None
        except Exception as e:  # whatever Python raises inside the template is about these messages
            raise BlinkError(
                f"{self.name} cannot render these messages ({type(e).__name__}: {e})",
                "change the messages or their tools",
            ) from None


# Names under which APIs carry a message's reasoning; templates read the first, some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    out = {k: v for k, v in message.items() if v is not None}
    reasoning = next((out[k] for k in _REASONING if k in out), None)
    if reasoning is not None:
        out = {"thinking": reasoning, **out, "reasoning_content": reasoning}
    return out


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks what an assistant said, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """``dict`` without the class's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training: jinja2's own filter escapes HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict())
    return environment


_ENVIRONMENT = _environment()
