"""Chat messages as chat templates expect them."""

from __future__ import annotations

import json
from typing import Any

from blink.frontend.errors import bad, unsupported

ROLES = ("system", "developer", "user", "assistant", "tool")


def template_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a request in the form that checkpoints' templates read.

    Text parts are joined with line breaks, ``developer`` becomes ``system``, and the arguments of earlier tool calls
    become objects, since templates print them as JSON. Other keys pass through. Raises ApiError naming the message.
    """
    return [_message(m, f"messages[{i}]") for i, m in enumerate(messages)]


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise bad(f"{where}.role", f"is not one of {', '.join(ROLES)}")
    calls = _tool_calls(message.get("tool_calls"), where)
    content = _content(message.get("content"), f"{where}.content")
    if content is None and not (role == "assistant" and calls):
        raise bad(f"{where}.content", "is missing", "missing_required_parameter")
    result = {k: v for k, v in message.items() if v is not None}
    result["role"] = "system" if role == "developer" else role
    result["content"] = content if content is not None else ""
    if calls:
        result["tool_calls"] = calls
    return result


def _content(content: object, where: str) -> str | None:
    """Text of a message: a string, or parts of type text. None where there is none. Raises ApiError."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise bad(where, "is neither a string nor a list of parts")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("image_url", "input_audio", "audio_url", "video_url", "file"):
            raise unsupported(f"{where}[{i}].type", f"{kind} is not implemented; this server reads text")
        if kind != "text" or not isinstance(part.get("text"), str):
            raise bad(f"{where}[{i}]", 'is not {"type": "text", "text": …}')
        texts.append(part["text"])
    return "\n".join(texts)


def _tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    """Earlier calls of the assistant with ``arguments`` as objects. Raises ApiError."""
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise bad(f"{where}.tool_calls", "is not a list")
    result = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad(f"{where}.tool_calls[{i}].function", "has no name")
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                raise bad(f"{where}.tool_calls[{i}].function.arguments", "is not JSON text") from None
        result.append({**call, "type": "function", "function": {**function, "arguments": arguments}})
    return result
