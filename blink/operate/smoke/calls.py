"""Requests of a check: each within its deadline, and what went wrong said as a fault of the appliance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from blink.operate.smoke.check import CheckError, Deadline

Json = dict[str, Any]


def call(client: httpx.Client, deadline: Deadline, method: str, path: str, body: Json | None = None) -> httpx.Response:
    """One request; the answer whatever its status. Raises CheckError naming what did not answer, and why."""
    what = f"{method} {client.base_url}{path}".replace("//v1", "/v1")
    try:
        return client.request(method, path, json=body, timeout=deadline.left(what))
    except httpx.HTTPError as e:
        raise failure(e, what, deadline) from None


def answer(response: httpx.Response, status: int = 200) -> Json:
    """The JSON object of ``response``. Raises CheckError unless it has that status and is one."""
    what = f"{response.request.method} {response.request.url}"
    if response.status_code != status:
        raise CheckError(
            f"{what} answered {response.status_code}, not {status}: {response.text[:200]!r}",
            {
                401: "the key in frontend.api_keys_file is not the one that the frontend loaded: restart it",
                429: "the appliance is at capacity: try again when it is less busy, or raise engine.queue",
                503: "the frontend runs, and the backend or the ring does not: `blink status`",
            }.get(response.status_code, "a defect of the frontend: its log has the request"),
        )
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise CheckError(f"{what} answered no JSON object: {response.text[:200]!r}", "something else has this port")
    return document


@contextmanager
def stream(client: httpx.Client, deadline: Deadline, path: str, body: Json) -> Iterator[httpx.Response]:
    """POST ``body`` and give the open response; leaving the block hangs up. Raises CheckError unless it is a stream."""
    what = f"the first event of POST {path}"
    try:
        with client.stream("POST", path, json=body, timeout=deadline.left(what)) as response:
            if response.status_code != 200:
                response.read()
                answer(response)
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise CheckError(f"POST {path} answered {kind!r}, not a stream", "a defect of the frontend")
            yield response
    except httpx.HTTPError as e:
        raise failure(e, what, deadline) from None


def events(response: httpx.Response, deadline: Deadline) -> Iterator[Json | str]:
    """The data of each server-sent event of ``response``: JSON objects, and other data such as [DONE] as text."""
    what = f"the next event of {response.request.url.path}"
    try:
        deadline.left(what)
        for line in response.iter_lines():
            deadline.left(what)
            if line.startswith("data:"):
                data = line.removeprefix("data:").strip()
                try:
                    yield json.loads(data) if data.startswith("{") else data
                except ValueError:
                    raise CheckError(f"an event is not JSON: {data[:200]!r}", "a defect of the frontend") from None
    except httpx.HTTPError as e:
        raise failure(e, what, deadline) from None


def failure(e: httpx.HTTPError, what: str, deadline: Deadline) -> CheckError:
    """What an exception of the HTTP client says about the appliance."""
    if isinstance(e, httpx.ConnectError):
        return CheckError(f"{what}: {e}", "the frontend is down, or frontend.host or frontend.port differ from its own")
    if isinstance(e, httpx.TimeoutException):
        return deadline.expired()
    return CheckError(f"{what}: {type(e).__name__}: {e}", "the frontend closed the connection: its log says why")
