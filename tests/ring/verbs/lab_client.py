"""Programs for the frontend's machine of the lab: ``CONFIG COMMAND [ARGUMENT…]``; prints one JSON object.

The ring's machine runs ``blink ringd`` and tests.ring.scheduler_process, whose toy model makes every token checkable.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from blink.config import ApplianceConfig, load_config
from blink.ring import handshake as hs
from blink.ring.client import RingClient, RingFull, SamplingParams, SubmitRequest
from blink.ring.layout import PAGE, Reason
from blink.ring.transport import Channel, LinkState, Region
from blink.ring.verbs.connection import Request
from blink.ring.verbs.device import Device
from blink.ring.verbs.transport import VerbsTransport
from blink.ring_access import holder_id, open_transport
from tests.ring.scheduler_process import CONFIG
from tests.ring.toy import expected_tokens

Json = dict[str, Any]


def worker(config: ApplianceConfig, holder: bytes | None = None) -> VerbsTransport:
    """A transport of partition 0."""
    assert config.rdma is not None
    rdma = config.rdma
    request = Request(rdma, hs.Access.WORKER, 0, holder or holder_id(config.instance.run_dir))
    return VerbsTransport(request, lambda: Device(rdma))


def settle(transport: VerbsTransport, seconds: float = 30) -> str:
    """Connect; why it is not up, or an empty string."""
    transport.reconnect()
    end = time.monotonic() + seconds
    while transport.state is LinkState.CONNECTING and time.monotonic() < end:
        time.sleep(0.005)
    return transport.detail


def finish(transport: VerbsTransport, ticket: int, seconds: float = 20) -> bytes | None:
    """The bytes of ``ticket``; None where the link broke."""
    end = time.monotonic() + seconds
    while transport.state is LinkState.UP and time.monotonic() < end:
        for done in transport.poll():
            if done.ticket == ticket:
                return b"" if done.data is None else done.data.tobytes()
    return None


def resources() -> dict[str, int]:
    """What ``rdma resource show`` counts."""
    words = subprocess.run(["rdma", "resource", "show"], capture_output=True, text=True, check=True).stdout.split()
    return {kind: int(words[words.index(kind) + 1]) for kind in ("pd", "cq", "qp", "mr", "ctx")}


def stream(config: ApplianceConfig, requests: str, seconds: str, pace: str = "0") -> Json:
    """Run that many requests, for at most that many seconds, one begun each ``pace`` seconds; every token is checked.

    Changes of health go to stderr as they happen.
    """
    client, rng, wanted = RingClient(open_transport(config, 0), link_timeout_s=60), random.Random(5), int(requests)
    running: dict[Any, tuple[list[int], list[int], int]] = {}
    ends: list[str] = []
    wrong, tokens, submitted, downs, down = 0, 0, 0, 0, "-"
    end, due = time.monotonic() + float(seconds), 0.0
    while len(ends) < wanted and time.monotonic() < end:
        for update in client.poll(time.monotonic()):
            expected, got, _ = running[update.handle]
            got += update.tokens
            tokens += len(update.tokens)
            wrong += got != expected[: len(got)]
            if update.reason is not None or update.error is not None:
                wrong += update.reason is Reason.LENGTH and got != expected
                ends.append(update.error or str(update.reason and update.reason.name))
                del running[update.handle]
        time.sleep(0.001)
        now_down = client.health().down
        if now_down != down:
            down, downs = now_down, downs + bool(now_down and submitted)
            print(json.dumps({"health": now_down, "ended": len(ends)}), file=sys.stderr, flush=True)
        if not now_down and submitted < wanted and len(running) < 8 and time.monotonic() >= due:
            due = time.monotonic() + float(pace)
            prompt = np.array([rng.randrange(CONFIG.vocab) for _ in range(rng.randint(1, 60))], np.uint32)
            request = SubmitRequest(prompt, rng.randint(1, 120), SamplingParams(seed=1), ignore_eos=True)
            try:
                handle = client.submit(request)
            except RingFull:
                continue
            submitted += 1
            running[handle] = (expected_tokens(prompt.tolist(), request.max_tokens, CONFIG.vocab), [], submitted)
    client.close()
    return {
        "ended": len(ends), "reasons": {r: ends.count(r) for r in set(ends)}, "tokens": tokens, "wrong": wrong,
        "downs": downs, "down": down,
    }  # fmt: skip


def permissions(config: ApplianceConfig) -> Json:
    """Writes to H and G, and beyond F; each is posted past every check of ours, so that the device must refuse it."""
    outcome: Json = {}
    for name, region, beyond in (("H", Region.H, 0), ("G", Region.G, 0), ("beyond F", Region.F, 1)):
        transport = worker(config)
        assert settle(transport) == "", transport.detail
        connection = transport.connection
        assert connection is not None
        assert connection.writes is not None
        before = finish(transport, transport.post_read(region, 0, 8))
        place = connection.region(region)
        connection.writes.write([(place.address + beyond * place.length, b"\xff" * 8)], place.rkey, 999)
        landed, detail = finish(transport, 999) is not None, transport.detail
        assert settle(transport) == "", transport.detail
        after = finish(transport, transport.post_read(region, 0, 8))
        outcome[name] = {"landed": landed, "detail": detail, "changed": before is None or before != after}
        transport.close()
    for name, region, read in (
        ("read beyond G", Region.G, True),
        ("write F on a queue pair for reads", Region.F, False),
    ):
        transport = worker(config)
        assert settle(transport) == "", transport.detail
        connection = transport.connection
        assert connection is not None
        place, queue = connection.region(region), connection.reads[Channel.STATUS]
        if read:
            queue.read(place.address + place.length, place.rkey, 8, 999)
        else:
            queue._read = False
            queue.write([(place.address + 8, b"\xff" * 8)], place.rkey, 999)
        outcome[name] = {"landed": finish(transport, 999) is not None, "detail": transport.detail, "changed": False}
        transport.close()
    return outcome


def reconnect(config: ApplianceConfig, times: str) -> Json:
    """Connect that often; the device's resources before, connected, and after, and this process's memory."""
    before, rss = resources(), []
    transport = worker(config)
    for _ in range(int(times)):
        assert settle(transport) == "", transport.detail
        assert finish(transport, transport.post_read(Region.H, 0, PAGE)) is not None, transport.detail
        rss.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4)
    connected = resources()
    transport.close()
    return {
        "before": before,
        "connected": connected,
        "after": resources(),
        "rss_kib": [rss[0], rss[len(rss) // 2], rss[-1]],
    }


def refused(config: ApplianceConfig) -> Json:
    """What a frontend with another holder id is told."""
    return {"detail": settle(worker(config, bytes(16)))}


def main() -> int:
    """Run a command."""
    config = load_config(Path(sys.argv[1]))
    commands: dict[str, Callable[..., Json]] = {f.__name__: f for f in (stream, permissions, reconnect, refused)}
    print(json.dumps(commands[sys.argv[2]](config, *sys.argv[3:])), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
