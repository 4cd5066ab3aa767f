"""Tool calls in the Hermes format, which Qwen and others use: ``<tool_call>{"name": …, "arguments": …}</tool_call>``.

Format: https://github.com/NousResearch/Hermes-Function-Calling ("Prompt Format for Function Calling").
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from blink.frontend.stop_strings import open_length

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


OTHER_FORMATS = ("<function=", "<arg_key>")  # the same tags around something else than JSON: Qwen3-Coder, GLM


def makes_calls(template: str) -> bool:
    """Whether a chat template of this source takes tools and asks for calls in this format."""
    known = all(word in template for word in ("tools", OPEN, "arguments"))
    return known and not any(word in template for word in OTHER_FORMATS)


@dataclass(frozen=True)
class ToolCall:
    """One call; ``arguments`` is JSON text, as OpenAI has it."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}", compare=False)

    def body(self) -> dict[str, Any]:
        """The call as the API returns it, without the index that stream deltas add."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def parse_call(text: str) -> ToolCall | None:
    """The call between the tags, or None where ``text`` is not one."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(call["name"], arguments)


class ToolCallParser:
    """Separate the calls from the content of a text that arrives in pieces.

    A call is delivered when its closing tag has arrived. What lies between tags and is no call stays content, tags
    included. Blanks around calls are dropped; blanks within the content are not.
    """

    def __init__(self) -> None:
        self._buffer = ""
        self._inside = False
        self._blank = ""  # blanks at the end of the content: dropped where a call follows
        self._called = False  # nothing but blanks came since the last call

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        """Content and calls that ``text`` completes."""
        content, calls = "", list[ToolCall]()
        self._buffer += text
        while True:
            if not self._inside:
                before, opened, rest = self._buffer.partition(OPEN)
                if not opened:
                    safe = len(before) - open_length(before, (OPEN,))
                    self._buffer = before[safe:]
                    return content + self._content(before[:safe]), calls
                content += self._content(before)
                self._buffer, self._inside = rest, True
            body, closed, rest = self._buffer.partition(CLOSE)
            if not closed:
                return content, calls
            self._buffer, self._inside = rest, False
            call = parse_call(body)
            if call is None:
                content += self._content(OPEN + body + CLOSE)
            else:
                self._blank, self._called = "", True
                calls.append(call)

    def _content(self, text: str) -> str:
        text = self._blank + text
        if self._called:
            text = text.lstrip()
        kept = text.rstrip()
        self._blank = text[len(kept) :]
        if kept:
            self._called = False
        return kept

    def flush(self) -> str:
        """What was held back, once no more text will come: an open call is content, as the model wrote it."""
        content = self._content((OPEN if self._inside else "") + self._buffer) + self._blank
        self._buffer = self._blank = ""
        return content
