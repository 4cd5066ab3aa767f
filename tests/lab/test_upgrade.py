"""An upgrade and a rollback of the deployed lab by the playbooks, while a client asks again and again."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.ansible.bundles import Bundles
from tests.lab.deployed import Deployed, wait_for
from tests.lab.play import play

LAB_PYTHON = "3.13"

pytestmark = [
    pytest.mark.timeout(5400),
    pytest.mark.skipif("LAB_UPGRADE" not in os.environ, reason="takes half an hour: set LAB_UPGRADE=1"),
]


class Client:
    """A client that asks GET /ready before each request, as a gateway does, until the block ends."""

    def __init__(self, lab: Deployed) -> None:
        self._lab, self._end = lab, threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.answers, self.failures = 0, list[str]()

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(240)

    def _ask(self) -> None:
        body = {"model": "tiny-random-llama", "prompt": "The ring", "max_tokens": 8, "ignore_eos": True}
        with httpx.Client(base_url=self._lab.url, timeout=180, trust_env=False) as client:
            while not self._end.is_set():
                try:
                    if client.get("/ready").status_code != 200:
                        time.sleep(1)
                        continue
                except httpx.HTTPError:  # the frontend restarts
                    time.sleep(1)
                    continue
                try:
                    answer = client.post("/v1/completions", json=body)
                except httpx.HTTPError as e:
                    self.failures.append(f"{type(e).__name__}: {e}")
                    continue
                if answer.status_code == 200:
                    self.answers += 1
                else:
                    self.failures.append(f"{answer.status_code}: {answer.text[:200]}")


def releases(lab: Deployed) -> list[str]:
    return [machine.ssh("cat /opt/blink/.release").stdout.strip() for machine in (lab.gpu, lab.dpu)]


def test_an_upgrade_and_a_rollback_fail_no_request(lab: Deployed, tmp_path: Path) -> None:
    newer = Bundles(tmp_path / "bundles", LAB_PYTHON).release("newer", {"blink/__init__.py": ("0.1.0", "0.1.1")})
    before = releases(lab)
    assert before[0] == before[1]
    with Client(lab) as client:
        wait_for("answers", lambda: client.answers > 2)
        play("playbooks/upgrade.yml", release_set=newer).require()
        after = releases(lab)
        assert after[0] == after[1] != before[0]
        count = client.answers
        wait_for("answers of the newer release", lambda: client.answers > count + 2)
        play("playbooks/rollback.yml").require()
        count = client.answers
        wait_for("answers of the release before", lambda: client.answers > count + 2)
    assert client.failures == []
    assert releases(lab) == before
    for machine in (lab.gpu, lab.dpu):
        assert "No such file" in machine.ssh("ls /run/lock/blink-change-ap001", check=False).stderr
        assert '"verb": "rollback"' in machine.ssh("tail -n 1 /var/lib/blink/log/audit.jsonl").stdout
