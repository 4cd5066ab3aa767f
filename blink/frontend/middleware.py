"""What every HTTP request passes: its id, the API key, the access log, and the last resort for exceptions."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blink.errors import BlinkError
from blink.frontend.errors import CLIENT_CLOSED, ApiError
from blink.frontend.metrics import Metrics

PROTECTED = ("/v1/", "/tokenize", "/detokenize")
RECORD = "blink.record"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

access_log = logging.getLogger("blink.access")
log = logging.getLogger("blink.frontend")


@dataclass
class Record:
    """What the access log says about a request."""

    request_id: str
    status: int = 0
    gone: bool = False
    user: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish: str | None = None
    latencies_ms: Mapping[str, float] = field(default_factory=dict)


def record_of(request: Request) -> Record:
    """The record of ``request``."""
    return cast(Record, request.scope[RECORD])


class ApiKeys:
    """Keys of ``path``, one a line. Raises BlinkError where the file cannot be read or has none."""

    def __init__(self, path: Path) -> None:
        try:
            keys = path.read_text(encoding="utf-8").split()
        except OSError as e:
            raise BlinkError(
                f"frontend.api_keys_file {path}: {e.strerror}", "name a file with one key a line"
            ) from None
        except UnicodeDecodeError:
            raise BlinkError(f"frontend.api_keys_file {path} is not UTF-8 text", "write one key a line") from None
        if not keys:
            raise BlinkError(f"frontend.api_keys_file {path} has no key", "write one key a line")
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def check(self, authorization: str | None) -> None:
        """Raise ApiError 401 unless the header's bearer token is a key; takes the same time for every wrong one."""
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode()).digest()
        known = [hmac.compare_digest(digest, d) for d in self._digests]
        if not any(known) or scheme.lower() != "bearer":
            why = "no API key was given" if not authorization else "the API key is wrong"
            raise ApiError(401, f"Authorization: {why}; send 'Authorization: Bearer KEY'", code="invalid_api_key")


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, metrics: Metrics, keys: ApiKeys | None) -> None:
        self._app, self._metrics, self._keys = app, metrics, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other scopes pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, start = Headers(scope=scope), time.monotonic()
        given = headers.get("x-request-id", "")
        record = Record(given if _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}")
        scope[RECORD] = record

        async def respond(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = record.request_id
            await send(message)

        try:
            if self._keys is not None and scope["path"].startswith(PROTECTED):
                self._keys.check(headers.get("authorization"))
            await self._app(scope, receive, respond)
        except ApiError as e:
            await e.response()(scope, receive, respond)
        except Exception:
            log.exception("request %s failed", record.request_id)
            if not record.status:
                error = ApiError(500, f"internal error; the log has it as {record.request_id}", code="internal_error")
                await error.response()(scope, receive, respond)
        finally:
            self._note(scope, record, time.monotonic() - start)

    def _note(self, scope: Scope, record: Record, seconds: float) -> None:
        status = CLIENT_CLOSED if record.gone else record.status
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.response(route, status)
        client = scope.get("client") or ("-", 0)
        extra = (
            ("user", record.user),
            ("prompt_tokens", record.prompt_tokens),
            ("output_tokens", record.output_tokens),
            ("finish", record.finish),
            *record.latencies_ms.items(),
        )
        access_log.info(
            '%s %s "%s %s" %d %.1f ms%s',
            client[0], record.request_id, scope["method"], quote(scope["path"]), status, 1000 * seconds,
            "".join(f" {name}={value!r}" for name, value in extra if value is not None),
        )  # fmt: skip
