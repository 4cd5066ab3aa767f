"""Server-sent events, and noticing that their reader left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blink.frontend.errors import ApiError, ClientGone

SEND_TIMEOUT_S = 60.0  # a client that accepts nothing for that long is gone
DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any]) -> bytes:
    """``data`` as one event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class HangUp:
    """Watches a connection whose request body was read, and calls ``gone`` once when the client closes it."""

    def __init__(self, receive: Receive, gone: Callable[[], None]) -> None:
        self._task = asyncio.create_task(self._watch(receive, gone))

    async def _watch(self, receive: Receive, gone: Callable[[], None]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._task.cancel()


class EventStream(Response):
    """A text/event-stream response of ``events`` (encoded, one or more at a time).

    A failure becomes an error event, after which the stream closes without ``[DONE]``. ``close`` is called at the end
    however it comes; ``failed`` and ``gone`` hear of a failure and of a client that does not read any more.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        close: Callable[[], None],
        failed: Callable[[ApiError], None],
        gone: Callable[[], None],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._close, self._failed, self._gone = events, close, failed, gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""

        async def push(body: bytes, more: bool) -> None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": body, "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            try:
                async for data in self._events:
                    await push(data, True)
            except ApiError as e:
                self._failed(e)
                await push(event(e.body()), True)
            await push(b"", False)
        except (ClientGone, OSError, TimeoutError):
            self._gone()
        finally:
            self._close()
