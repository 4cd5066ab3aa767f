"""What every endpoint does with a request before it is its own: find the worker, read the body, describe it."""

from __future__ import annotations

from typing import Any, cast

from fastapi import Request

from blink.frontend.errors import ApiError
from blink.frontend.protocol import Body
from blink.frontend.service import Frontend

MAX_BODY_BYTES = 8 << 20


def frontend_of(request: Request) -> Frontend:
    """The worker that serves ``request``."""
    return cast(Frontend, request.app.state.frontend)


def reads(kind: type[Body]) -> dict[str, Any]:
    """The part of the OpenAPI description that FastAPI cannot see, since bodies are parsed by their endpoints."""
    schema = {"application/json": {"schema": kind.model_json_schema()}}
    return {"requestBody": {"required": True, "content": schema}}


async def read_body(request: Request) -> bytes:
    """The request's body. Raises ApiError 413 as soon as it is too large, before the rest of it is read."""
    too_large = ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="request_too_large")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise too_large
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise too_large
    return bytes(data)
