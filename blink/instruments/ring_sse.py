"""Readers of many streams in one process, cheap enough that the server is what limits them.

While the streams run, this only receives and counts; what was received is taken apart afterwards and checked against
the text that the counting engine must have produced.
"""

from __future__ import annotations

import bisect
import json
import os
import selectors
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from blink.errors import BlinkError
from blink.instruments.ring_synthetic import MARK, WIDTH, Board, answer

RECEIVE = 1 << 16
STALL_S = 30.0
_MARK = MARK.encode()
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Reader:
    """One connection: what came, and (monotonic seconds, bytes so far) at each receive."""

    socket: socket.socket
    seed: int
    data: bytearray = field(default_factory=bytearray)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    tokens: int = 0


@dataclass(frozen=True)
class Stream:
    """One checked answer: seconds at which each event with text came, and how many tokens it had."""

    times: tuple[float, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Reading:
    """All streams. Over ``seconds``, in which every stream was running: ``worker_cpu`` of the server's process and
    ``own_cpu`` of this one, in seconds; ``tokens`` and ``events`` that came, and ``lag`` of each event's newest token
    behind its step, in seconds."""

    streams: tuple[Stream, ...]
    seconds: float
    worker_cpu: float
    own_cpu: float
    tokens: int
    events: int
    lag: tuple[float, ...]


def request(model: str, prompt_tokens: int, max_tokens: int, seed: int, port: int) -> bytes:
    """The HTTP request of one stream."""
    body = json.dumps(
        {
            "model": model,
            "prompt": [seed % 1000 + 1] * prompt_tokens,
            "max_tokens": max_tokens,
            "seed": seed,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def read(
    board: Board, *, port: int, worker: int, model: str, streams: int, prompt_tokens: int, max_tokens: int
) -> Reading:
    """Open ``streams`` streams of the server at ``port``, whose process is ``worker``, and read them to their ends.

    Raises BlinkError for a token that is lost, doubled or another stream's, and for a stream that stands still.
    """
    readers = []
    with selectors.DefaultSelector() as selector:
        for seed in range(streams):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setblocking(False)
            reader = Reader(connection, seed)
            readers.append(reader)
            selector.register(connection, selectors.EVENT_READ, reader)
        for reader in readers:
            reader.socket.sendall(request(model, prompt_tokens, max_tokens, reader.seed, port))
        window = _receive(selector, board, worker, readers, max_tokens)
    start, end, worker_cpu, own_cpu = window
    checked = tuple(check(bytes(r.data), r.arrivals, r.seed, prompt_tokens, max_tokens) for r in readers)
    tokens = events = 0
    lag = []
    for seed, stream in enumerate(checked):
        have = 0
        for at, count in zip(stream.times, stream.tokens, strict=True):
            have += count
            if start < at <= end:
                tokens, events = tokens + count, events + 1
                lag.append(at - float(board.stamps[seed, have - 1]))
    return Reading(checked, end - start, worker_cpu, own_cpu, tokens, events, tuple(lag))


def _receive(
    selector: selectors.BaseSelector, board: Board, worker: int, readers: list[Reader], max_tokens: int
) -> tuple[float, float, float, float]:
    """Receive until every stream has ended; the time in which all were running: start, end, CPU of worker and own."""
    waiting, running = len(readers), len(readers)
    start = end = own = server = 0.0
    while running:
        ready = selector.select(STALL_S)
        if not ready:
            raise BlinkError(f"{running} streams brought nothing for {STALL_S:.0f} s", "see the frontend's log above")
        for key, _ in ready:
            reader: Reader = key.data
            data = reader.socket.recv(RECEIVE)
            now = time.monotonic()
            if data:
                reader.data += data
                reader.arrivals.append((now, len(reader.data)))
                fresh = data.count(_MARK)
                if fresh and not reader.tokens:
                    waiting -= 1
                    if not waiting:
                        start, server, own = now, cpu_seconds(worker), time.process_time()
                reader.tokens += fresh
                board.read[0] += fresh
                if reader.tokens == max_tokens and not end:
                    end, server, own = now, cpu_seconds(worker) - server, time.process_time() - own
            if not data or reader.data.endswith(b"\r\n0\r\n\r\n"):
                if not reader.tokens:
                    raise BlinkError(
                        f"stream {reader.seed}: {bytes(reader.data[-300:])!r}", "see the frontend's answer"
                    )
                selector.unregister(reader.socket)
                reader.socket.close()
                running -= 1
    if waiting or end <= start:
        raise BlinkError("the streams did not run at the same time", "ask for longer streams")
    return start, end, server, own


def check(data: bytes, arrivals: list[tuple[float, int]], seed: int, prompt_tokens: int, max_tokens: int) -> Stream:
    """Take one response apart. Raises BlinkError unless it says each of its tokens once, in order."""
    head, _, _ = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise BlinkError(f"stream {seed}: {data[:300]!r}", "see the frontend's log")
    body, ends = _dechunk(data, len(head) + 4)
    moments = [at for _, at in arrivals]
    times, tokens, said, usage = list[float](), list[int](), "", None
    at = 0
    *events, last, rest = body.split(b"\n\n")
    for event in events:
        at += len(event) + 2
        document = json.loads(event.removeprefix(b"data: "))
        usage = document.get("usage") or usage
        piece = "".join(c["text"] for c in document.get("choices", ()))
        if piece:
            said += piece
            raw = ends[bisect.bisect_left(ends, (at, 0))][1]
            times.append(arrivals[bisect.bisect_left(moments, raw)][0])
            tokens.append(len(piece) // WIDTH)
    expected = answer(prompt_tokens, seed, max_tokens)
    if said != expected or last != b"data: [DONE]" or rest:
        same = next((i for i, (a, b) in enumerate(zip(said, expected, strict=False)) if a != b), len(said)) // WIDTH
        raise BlinkError(
            f"stream {seed}: {len(said) / WIDTH:g} of {max_tokens} tokens, wrong from token {same} on",
            "a token was lost, doubled or delivered to another stream: this is a defect",
        )
    if usage is None or usage["completion_tokens"] != max_tokens:
        raise BlinkError(f"stream {seed}: usage is {usage} after {max_tokens} tokens", "this is a defect")
    return Stream(tuple(times), tuple(tokens))


def _dechunk(data: bytes, at: int) -> tuple[bytes, list[tuple[int, int]]]:
    """The body of a chunked response from offset ``at`` on, and (its length, offset in ``data``) after each chunk."""
    body, ends = bytearray(), list[tuple[int, int]]()
    while True:
        line = data.index(b"\r\n", at)
        size = int(data[at:line], 16)
        if not size:
            return bytes(body), ends
        body += data[line + 2 : line + 2 + size]
        at = line + 4 + size
        ends.append((len(body), at))
