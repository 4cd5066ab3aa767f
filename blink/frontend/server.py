"""``blink frontend``: check the configuration, bind the port, run uvicorn."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import socket
import ssl
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from blink.config import ApplianceConfig, FrontendConfig
from blink.errors import BlinkError
from blink.frontend.app import create_app
from blink.frontend.metrics import MULTIPROC_DIR
from blink.model.prepared import PreparedModel
from blink.ring.lease import PartitionLease

CONFIG = "BLINK_FRONTEND_CONFIG"  # the configuration as JSON, for worker processes
BACKLOG = 2048
KEEP_ALIVE_S = 75  # longer than the pools of clients and proxies keep an idle connection, so that they close it
WORKER_START_S = 60  # what a worker has to import everything, and one that hangs until it is replaced
GRACE_S = 5.0  # what a connection has beyond the drain to read its last event

__all__ = ["create_app", "main"]


def main(config: ApplianceConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    Raises BlinkError where it cannot serve: a busy port, an unreadable model, key or certificate file, a partition
    that another process holds. A backend that is not up is no reason: /health says so until it comes.
    """
    _configure_logging()
    _check_tls(config.frontend)
    if config.frontend.workers == 1:
        return _serve_here(config)
    return _serve_with_workers(config)


def _serve_here(config: ApplianceConfig) -> int:
    listener = _bind(config.frontend)
    with listener:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _exit)  # before uvicorn's own, and again when it has drained
        app = _application(config)
        log = logging.getLogger("blink.frontend")
        log.info("listening on %s port %d", config.frontend.host, config.frontend.port)
        uvicorn.Server(uvicorn.Config(app, **_options(config.frontend))).run(sockets=[listener])
    return 0


def _exit(_: int, __: FrameType | None) -> None:
    sys.exit(0)


def _serve_with_workers(config: ApplianceConfig) -> int:
    """One process per partition. What a worker would stumble over is checked here, where it can be told."""
    f = config.frontend
    PreparedModel.open(config.model.path, weights=False)
    for partition in range(f.workers):
        PartitionLease(config.instance.run_dir, partition).release()
    _bind(f).close()
    folder = config.instance.run_dir / "metrics"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ[MULTIPROC_DIR] = str(folder)
    os.environ[CONFIG] = config.model_dump_json()
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)  # it says which worker died
    uvicorn.run(
        "blink.frontend.server:worker_app",
        factory=True,
        host=f.host.strip("[]"),
        port=f.port,
        workers=f.workers,
        timeout_worker_healthcheck=WORKER_START_S,
        **_options(f),
    )
    return 0


def worker_app() -> ASGIApp:
    """The application of a worker process, whose configuration is in its environment."""
    _configure_logging()
    try:
        return _application(ApplianceConfig.model_validate_json(os.environ[CONFIG]))
    except BlinkError as e:
        print(f"blink: {e}", file=sys.stderr)
        sys.exit(STARTUP_FAILURE)  # uvicorn then stops the other workers and starts none again


def _application(config: ApplianceConfig) -> ASGIApp:
    """The application, all that was made until now kept out of garbage collections: modules, schemas and routes stay as
    long as the process, and to walk them stops every stream of the worker for tens of milliseconds."""
    app = create_app(config)
    gc.collect()
    gc.freeze()
    return app


def _options(f: FrontendConfig) -> dict[str, Any]:
    return {
        "backlog": BACKLOG,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "access_log": False,
        "log_config": None,
        "server_header": False,
        "timeout_graceful_shutdown": int(f.drain_timeout_s + GRACE_S),
        "ssl_certfile": None if f.tls_cert is None else str(f.tls_cert),
        "ssl_keyfile": None if f.tls_key is None else str(f.tls_key),
    }


def _bind(f: FrontendConfig) -> socket.socket:
    """The listening address. Raises BlinkError naming it where it cannot be had."""
    host = f.host.strip("[]")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, f.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as e:
        raise BlinkError(
            f"frontend.port {f.port} on {f.host}: {e.strerror}",
            "stop what uses it (`ss -ltnp`), or set another frontend.host or frontend.port",
        ) from None
    listener.setblocking(False)
    return listener


def _check_tls(f: FrontendConfig) -> None:
    if (f.tls_cert is None) != (f.tls_key is None):
        raise BlinkError("frontend: one of tls_cert and tls_key is set", "set both or neither")
    if f.tls_cert is None or f.tls_key is None:
        return
    for name, path in (("tls_cert", f.tls_cert), ("tls_key", f.tls_key)):
        _require_readable(f"frontend.{name}", path)
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(f.tls_cert, f.tls_key)
    except (ssl.SSLError, OSError) as e:
        raise BlinkError(
            f"frontend.tls_cert {f.tls_cert} and tls_key {f.tls_key}: {e}", "give a PEM certificate and its key"
        ) from None


def _require_readable(field: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as e:
        raise BlinkError(f"{field} {path}: {e.strerror}", "name a file that the frontend may read") from None


def _configure_logging() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
