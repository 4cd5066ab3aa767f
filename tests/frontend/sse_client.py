"""Reading a stream in tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx


def events(response: httpx.Response) -> Iterator[dict[str, Any] | str]:
    """Each event of a stream: a JSON object or "[DONE]"."""
    for line in response.iter_lines():
        if line:
            assert line.startswith("data: "), line
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def stream(client: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """All chunks of a stream that ends well."""
    with client.stream("POST", path, json={"model": "tiny", "stream": True, **body}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        said = list(events(response))
    assert said[-1] == "[DONE]"
    chunks = [c for c in said[:-1] if isinstance(c, dict)]
    assert len(chunks) == len(said) - 1
    assert len({c["id"] for c in chunks}) == 1
    return chunks
