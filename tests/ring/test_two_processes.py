"""Client and scheduler core in two processes over real shared memory, with concurrent streams and real timing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from blink.ring.client import Handle, RingClient, RingFull, SamplingParams, SubmitRequest
from blink.ring.layout import Reason
from blink.ring.shm import ShmTransport
from tests.ring.scheduler_process import CONFIG
from tests.ring.toy import expected_logprob, expected_tokens

ROOT = Path(__file__).resolve().parents[2]
REQUESTS = 400


def test_every_token_arrives(tmp_path: Path) -> None:
    """2 to 6, 11, 13 on real memory: all streams are right, and the scheduler's books balance."""
    command = [sys.executable, "-m", "tests.ring.scheduler_process", str(tmp_path), "120"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as scheduler:
        try:
            assert scheduler.stdout is not None
            assert scheduler.stdout.readline() == "published\n", scheduler.stderr and scheduler.stderr.read()
            ends = drive(RingClient(ShmTransport(tmp_path, 0)), random.Random(1))
            out, err = scheduler.communicate("stop\n", timeout=60)
        finally:
            scheduler.kill()
    assert scheduler.returncode == 0, err
    counters = json.loads(out)
    assert counters["FINISHED_LENGTH"] == ends.count(Reason.LENGTH)
    assert counters["FINISHED_CANCELLED"] == ends.count(Reason.CANCELLED)
    assert counters["TORN"] == 0, "3: a request was visible before its chain had completed"
    for name in ("PAGES", "LANES", "RECORDS"):
        assert counters[f"{name}_TAKEN"] == counters[f"{name}_RETURNED"], f"13: {name.lower()} leaked"


def drive(client: RingClient, rng: random.Random) -> list[Reason]:
    """Run REQUESTS requests through ``client``; how each ended."""
    running: dict[Handle, tuple[SubmitRequest, list[int], list[int]]] = {}
    cancelled: set[Handle] = set()
    ends: list[Reason] = []
    submitted, end = 0, time.monotonic() + 60
    while len(ends) < REQUESTS:
        now = time.monotonic()
        assert now < end, f"waited 60 s for {len(running)} requests: {client.health()}"
        for update in client.poll(now):
            assert update.error is None
            request, expected, got = running[update.handle]
            got += update.tokens
            assert got == expected[: len(got)], "6: the delivered tokens are no prefix"
            if request.logprobs is not None:
                wanted = [expected_logprob(t, request.logprobs, CONFIG.vocab) for t in update.tokens]
                assert update.logprobs == wanted
            if update.reason is not None:
                ends.append(update.reason)
                allowed = {Reason.LENGTH} | ({Reason.CANCELLED} if update.handle in cancelled else set())
                assert update.reason in allowed, "11: an end that nobody asked for"
                assert update.reason is not Reason.LENGTH or got == expected, "6: tokens are missing at the end"
                del running[update.handle]
        if client.health().down == "" and submitted < REQUESTS and rng.random() < 0.5:
            prompt = np.array([rng.randrange(CONFIG.vocab) for _ in range(rng.randint(1, 60))], np.uint32)
            request = SubmitRequest(
                prompt, rng.randint(1, 60), SamplingParams(seed=1), ignore_eos=True, logprobs=rng.choice((None, 3))
            )
            try:
                handle = client.submit(request)
            except RingFull:
                continue
            submitted += 1
            running[handle] = (request, expected_tokens(prompt.tolist(), request.max_tokens, CONFIG.vocab), [])
        if running and rng.random() < 0.01:
            handle = rng.choice(list(running))
            cancelled.add(handle)
            client.cancel(handle)
    client.close()
    return ends
