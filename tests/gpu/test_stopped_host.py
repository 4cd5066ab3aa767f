"""The host process is out of the path: while it is stopped, another process goes on being served."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from blink.registry import ON_DEVICE
from blink.ring.client import RingClient, SamplingParams, SubmitRequest
from blink.ring.layout import Reason
from blink.ring.shm import ShmTransport
from tests.gpu.storm import VOCAB, run
from tests.kernels.hash_engine import answer

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
STOPPED_S = 4.0


def state_of(pid: int) -> str:
    """The process state of proc(5): T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.mark.parametrize("driver", ON_DEVICE)
def test_a_stopped_backend_serves(gpu: object, driver: str, shm: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu.appliance_process", str(shm), driver]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as backend:
        try:
            assert backend.stdout is not None
            assert backend.stdout.readline() == "serving\n"
            client = RingClient(ShmTransport(shm, 0))
            deadline = time.monotonic() + 10
            while client.health().down:
                client.poll(time.monotonic())
                assert time.monotonic() < deadline, client.health().down
            os.kill(backend.pid, signal.SIGSTOP)
            served, end = 0, time.monotonic() + STOPPED_S
            rng = np.random.default_rng(5)
            while time.monotonic() < end:
                prompt = rng.integers(0, VOCAB, 8).tolist()
                request = SubmitRequest(np.array(prompt, np.uint32), 40, SamplingParams(seed=served), ignore_eos=True)
                assert run(client, request) == (answer(prompt, served, 40, VOCAB), Reason.LENGTH)
                served += 1
            assert state_of(backend.pid) == "T"
            os.kill(backend.pid, signal.SIGCONT)
            backend.terminate()
            out, _ = backend.communicate(timeout=30)
        finally:
            backend.kill()
    assert backend.returncode == 0
    assert json.loads(out)["FINISHED_LENGTH"] == served > 100
