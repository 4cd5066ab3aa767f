"""A hub for tests: the part of the HuggingFace hub's HTTP interface that a download uses, over real sockets.

GET /api/models/REPO/revision/REV   what is in a revision (commit, names, sizes, SHA-256 of large files)
GET /api/models/REPO/tree/COMMIT    the same as a tree listing
HEAD, GET /REPO/resolve/COMMIT/FILE a file, with ETag, X-Repo-Commit and byte ranges
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = ".safetensors"  # stored by its SHA-256, as the hub stores large files


@dataclass
class Hub:
    """What the server holds and how it misbehaves.

    ``cut`` maps a file name to the number of bytes of it after which a connection breaks; ``cuts`` is how often.
    ``corrupt`` names a file of which one bit arrives changed.
    ``broken_after`` makes every request for a file that was cut fail with that status. ``requests`` records
    (method, path, Range header).
    """

    files: dict[str, bytes]
    repo: str = "org/name"
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    revisions: tuple[str, ...] = ("main", "v1.0")
    token: str | None = None
    gated: bool = False
    status: int | None = None
    cut: dict[str, int] = field(default_factory=dict)
    cuts: int = 1
    broken_after: int | None = None
    corrupt: str | None = None
    states_sizes: bool = True
    delay: threading.Event | None = None
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    @classmethod
    def of_folder(cls, folder: Path) -> Hub:
        """A hub whose only repository has the files of ``folder``."""
        return cls({p.name: p.read_bytes() for p in folder.iterdir()})

    def fetched(self, name: str) -> list[str | None]:
        """Range headers of the GET requests for a file."""
        return [r for method, path, r in self.requests if method == "GET" and path.endswith("/" + name)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path, self.headers.get("Range")))
        if hub.delay is not None:
            hub.delay.wait(30)
        if hub.status is not None:
            return self._error(hub.status, "", "the hub is being repaired")
        authorized = hub.token is None or self.headers.get("Authorization") == f"Bearer {hub.token}"
        api = re.fullmatch(r"/api/models/(.+?)/(revision|tree)/([^/]+)", path)
        resolve = re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path)
        repo, revision = (api[1], api[3]) if api else (resolve[1], resolve[2]) if resolve else ("", "")
        if repo != hub.repo:
            return self._error(401, "RepoNotFound", "Repository not found")
        if hub.gated and not authorized and resolve:
            return self._error(403, "GatedRepo", "Access to model org/name is restricted")
        if not hub.gated and not authorized:
            return self._error(401, "RepoNotFound", "Invalid username or password.")
        if revision not in (*hub.revisions, hub.commit):
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if api and api[2] == "tree":
            return self._json([{"type": "file", "path": n, **self._facts(n)} for n in hub.files], body)
        if api:
            siblings = [{"rfilename": n, **(self._facts(n) if hub.states_sizes else {})} for n in hub.files]
            return self._json({"id": repo, "sha": hub.commit, "siblings": siblings, "gated": hub.gated}, body)
        assert resolve is not None
        if resolve[3] not in hub.files:
            return self._error(404, "EntryNotFound", "Entry not found")
        return self._file(resolve[3], body)

    def _facts(self, name: str) -> dict[str, object]:
        data = self.hub.files[name]
        facts: dict[str, object] = {
            "size": len(data),
            "blobId": hashlib.sha1(data).hexdigest(),
            "oid": _etag(name, data),
        }
        if name.endswith(LARGE):
            facts["lfs"] = {
                "sha256": _etag(name, data),
                "oid": _etag(name, data),
                "size": len(data),
                "pointerSize": 100,
            }
        return facts

    def _file(self, name: str, body: bool) -> None:
        hub, data = self.hub, self.hub.files[name]
        etag = _etag(name, data)
        if name == hub.corrupt:
            data = data[:-1] + bytes([data[-1] ^ 1])
        start = 0
        if given := self.headers.get("Range"):
            start = int(given.removeprefix("bytes=").partition("-")[0])
        limit = hub.cut.get(name)
        if body and limit is not None and hub.cuts <= 0 and hub.broken_after:
            return self._error(hub.broken_after, "", "the hub is being repaired")
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", hub.commit)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if not body:
            return
        if limit is not None and hub.cuts > 0:
            hub.cuts -= 1
            self.wfile.write(data[start : start + limit])
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True
            return
        self.wfile.write(data[start:])

    def _json(self, value: object, body: bool) -> None:
        raw = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        if body:
            self.wfile.write(raw)

    def _error(self, status: int, code: str, message: str) -> None:
        raw = json.dumps({"error": message}).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)


def _etag(name: str, data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if name.endswith(LARGE) else hashlib.sha1(data).hexdigest()


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serve ``hub`` on a free port of the loopback interface; ``hub.url`` is its address."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        if hub.delay is not None:
            hub.delay.set()
        server.shutdown()
        server.server_close()
        thread.join()
