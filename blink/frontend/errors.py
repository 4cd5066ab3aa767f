"""What a client sees when a request fails: OpenAI's error object and the status that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse

from blink.ring.layout import REASON_TEXT, Reason

CLIENT_CLOSED = 499  # nginx's status for a client that hung up; it is logged and never sent


class ApiError(Exception):
    """A refusal or failure, as the client reads it.

    ``param`` names the request field at fault, ``code`` is stable for programs, ``retry_after`` (seconds) becomes the
    Retry-After header.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def type(self) -> str:
        """OpenAI's class of the error, by status."""
        if self.status == HTTPStatus.UNAUTHORIZED:
            return "authentication_error"
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return "rate_limit_error"
        return "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"

    def body(self) -> dict[str, Any]:
        """The JSON body, also of an error event in a stream."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The HTTP response."""
        headers = {} if self.retry_after is None else {"Retry-After": str(max(1, math.ceil(self.retry_after)))}
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


class ClientGone(Exception):  # noqa: N818 - not an error: nobody is left to be told
    """The client hung up; its ring requests are cancelled already."""


def bad(param: str, message: str, code: str | None = "invalid_value") -> ApiError:
    """A 400 for the value of field ``param``."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def unsupported(param: str, why: str = "this server does not implement it") -> ApiError:
    """A 400 for a field that is known but not implemented, so that it is never silently dropped."""
    return ApiError(400, f"{param}: {why}", param=param, code="unsupported_parameter")


def unavailable(hop: str, message: str, *, code: str = "backend_unavailable") -> ApiError:
    """A 503 that names the hop that is down."""
    return ApiError(503, f"{hop}: {message}", code=code, retry_after=1)


def overloaded(message: str) -> ApiError:
    """A 429: everything that may wait already waits."""
    return ApiError(429, message, code="queue_full", retry_after=1)


def field_path(loc: Sequence[int | str]) -> str:
    """``("messages", 0, "role")`` as ``messages[0].role``."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def from_validation(error: ValidationError) -> ApiError:
    """The first problem that pydantic found, as a 400."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(
            400, f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json"
        )
    param = field_path(first["loc"])
    if not param:
        return ApiError(400, "the body is not a JSON object", code="invalid_json")
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    return bad(param, first["msg"], code)


def from_ring_check(error: ValueError) -> ApiError:
    """A 400 for what :meth:`blink.ring.request.SubmitRequest.check` found: "field: why", in the ring's names."""
    field, _, why = str(error).partition(": ")
    return bad({"stop_ids, logit_bias": "logit_bias"}.get(field, field), why)


def from_reason(reason: Reason) -> ApiError:
    """The error for a ring request that ended with ``reason``, which is no normal end."""
    text = REASON_TEXT[reason]
    if reason in (Reason.ERR_DRAINING, Reason.ERR_STOPPED, Reason.ORPHANED):
        return unavailable("scheduler", text)
    if reason is Reason.DEADLINE:
        return ApiError(504, f"scheduler: {text}", code="timeout")
    if reason is Reason.ERR_TOO_LONG:
        return ApiError(400, text, code="context_length_exceeded")
    return ApiError(500, f"scheduler: {text} ({reason.name})", code=reason.name.lower())
