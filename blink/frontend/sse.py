"""Server-sent events, and noticing that their reader left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blink.frontend.encode import dumps
from blink.frontend.errors import ApiError, ClientGone

SEND_TIMEOUT_S = 60.0  # a client that accepts nothing for that long is gone
DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any]) -> bytes:
    """``data`` as one event."""
    return f"data: {dumps(data)}\n\n".encode()


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
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with _Sender(send) as sender:
                try:
                    async for data in self._events:
                        await sender.push(data)
                except ApiError as e:
                    self._failed(e)
                    await sender.push(event(e.body()))
                await sender.push(b"", more=False)
        except (ClientGone, OSError, TimeoutError):
            self._gone()
        finally:
            self._close()


class _Sender:
    """Sends the parts of a body. Raises TimeoutError once a part took SEND_TIMEOUT_S to twice that.

    One timer looks now and then whether the send it saw last time still stands: a timeout of its own for each part
    would cost more than the rest of an event.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sends = self._seen = 0
        self._sending = False
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> _Sender:
        await self._timeout.__aenter__()
        self._arm()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(*error)

    async def push(self, body: bytes, *, more: bool = True) -> None:
        """Send ``body``."""
        self._sends += 1
        self._sending = True
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._sending = False

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SEND_TIMEOUT_S, self._look)

    def _look(self) -> None:
        if self._sending and self._seen == self._sends:
            self._timeout.reschedule(asyncio.get_running_loop().time())
            return
        self._seen = self._sends
        self._arm()
