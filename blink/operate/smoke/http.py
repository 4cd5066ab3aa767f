"""The appliance's HTTP API as a client sees it: where it is, how to authenticate, and server-sent events."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from blink.config import FrontendConfig
from blink.errors import BlinkError
from blink.operate.smoke.check import CheckError, Deadline

Json = dict[str, Any]

# With pyverbs loaded the root logger prints INFO, and httpx then tells of every request.
logging.getLogger("httpx").setLevel(logging.WARNING)


def base_url(config: FrontendConfig) -> str:
    """Where a client on the frontend's machine reaches it."""
    scheme = "https" if config.tls_cert else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)  # noqa: S104 - compared, not bound
    return f"{scheme}://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{config.port}"


def api_key(config: FrontendConfig) -> str | None:
    """The first key of the frontend's key file, if it has one. Raises BlinkError where it cannot be read."""
    if config.api_keys_file is None:
        return None
    try:
        keys = config.api_keys_file.read_text(encoding="utf-8").split()
    except OSError as e:
        raise BlinkError(
            f"frontend.api_keys_file {config.api_keys_file}: {e.strerror}", "run as a user that may read it"
        ) from None
    if not keys:
        raise BlinkError(f"frontend.api_keys_file {config.api_keys_file} has no key", "write one key per line")
    return keys[0]


def client_options(config: FrontendConfig, *, authenticate: bool = True) -> dict[str, Any]:
    """Arguments for httpx.Client and AsyncClient: the address, the key, and trust in the frontend's own certificate.

    No proxy of the environment is used: the frontend is on this machine.
    """
    key = api_key(config) if authenticate else None
    options: dict[str, Any] = {
        "base_url": base_url(config),
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "trust_env": False,
    }
    if config.tls_cert:
        context = ssl.create_default_context(cafile=str(config.tls_cert))
        # It is trusted as it is, and an authority that signed it is not asked for.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        # The certificate names the appliance, and this client reaches it by a local address.
        context.check_hostname = False
        options["verify"] = context
    return options


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
