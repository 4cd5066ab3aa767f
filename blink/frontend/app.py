"""The application: routes, errors as OpenAI has them, and the worker that lives as long as it does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

import blink
from blink.config import ApplianceConfig
from blink.frontend.errors import CLIENT_CLOSED, ApiError
from blink.frontend.middleware import ApiKeys, Gate, record_of
from blink.frontend.routes import router
from blink.frontend.service import Frontend


def create_app(config: ApplianceConfig) -> ASGIApp:
    """The ASGI application of one worker. Raises BlinkError where it cannot serve; see :class:`Frontend`."""
    keys = None if config.frontend.api_keys_file is None else ApiKeys(config.frontend.api_keys_file)
    frontend = Frontend(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        frontend.start()
        _on_termination(frontend)
        yield
        await frontend.stop()

    # No interactive documentation: its pages load scripts from other hosts.
    app = FastAPI(title="Blink", version=blink.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.frontend = frontend
    app.include_router(router)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_exception_handler(Exception, _internal_error)
    return Gate(app, frontend.metrics, keys)


def _on_termination(frontend: Frontend) -> None:
    """Drain as soon as a signal to stop comes: the server itself tells its application only after the last answer."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)

        def handle(number: int, frame: FrameType | None, before: object = before) -> None:
            loop.call_soon_threadsafe(frontend.drain)
            if callable(before):
                before(number, frame)

        try:
            signal.signal(number, handle)
        except ValueError:  # not the main thread: whoever runs the application there also stops it
            return


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    """An unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}: {error.detail}"
    return ApiError(error.status_code, what, code="not_found" if error.status_code == 404 else None).response()


async def _client_left(request: Request, _: Exception) -> Response:
    """The client closed the connection while it sent its body."""
    record_of(request).gone = True
    return Response(status_code=CLIENT_CLOSED)


async def _internal_error(request: Request, _: Exception) -> Response:
    message = f"internal error; the log has it as {record_of(request).request_id}"
    return ApiError(500, message, code="internal_error").response()
