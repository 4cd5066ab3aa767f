"""The frontend as a client on its machine reaches it: where it is, how to authenticate, and whether it serves."""

from __future__ import annotations

import logging
import ssl
from typing import Any

import httpx

from blink.config import ApplianceConfig, FrontendConfig
from blink.errors import BlinkError

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


def frontend_trouble(config: ApplianceConfig) -> str | None:
    """None where the frontend answers GET /health with 200, else what it did instead, in a few words."""
    try:
        with httpx.Client(**client_options(config.frontend), timeout=5) as client:
            answer = client.get("/health")
    except httpx.HTTPError as e:
        return f"GET /health at port {config.frontend.port} failed ({e})"
    return None if answer.status_code == 200 else f"GET /health answered {answer.status_code}"


def requests_running(config: ApplianceConfig) -> int:
    """Requests in flight of all workers, as GET /ready says; none where no frontend listens.

    Raises BlinkError where it answers anything else.
    """
    try:
        with httpx.Client(**client_options(config.frontend), timeout=5) as client:
            return int(client.get("/ready").json()["running"])
    except httpx.ConnectError:
        return 0
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as e:
        raise BlinkError(
            f"the frontend does not say in GET /ready what it runs ({type(e).__name__}: {e})",
            "look at its log; restart it",
        ) from None
