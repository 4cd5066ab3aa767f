"""Planted secrets show nowhere: in what playbooks print, however much that is, in logs, command lines or files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ansible.conftest import Deployed

pytestmark = [pytest.mark.e2e, pytest.mark.fleet, pytest.mark.timeout(1800)]
API_KEY = "sk-planted-0b5c8d1f"
TYPED = "typed-planted-77aa"  # a variable with a secret's name that no role uses


class Watch:
    """Looks through the command lines and the environments of all processes for ``secrets`` until the block ends."""

    def __init__(self, *secrets: str) -> None:
        self._secrets = [secret.encode() for secret in secrets]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.looks = 0
        self.found: set[str] = set()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30)

    def _look(self) -> None:
        own = {os.getpid()}
        while not self._end.is_set():
            for process in Path("/proc").glob("[0-9]*"):
                if int(process.name) not in own:
                    self._read(process)
            self.looks += 1
            time.sleep(0.05)

    def _read(self, process: Path) -> None:
        for file in ("cmdline", "environ"):
            try:
                data = (process / file).read_bytes()
            except OSError:
                continue
            # The variables of this run are given with --extra-vars @FILE, so no process has them as arguments.
            if any(secret in data for secret in self._secrets):
                self.found.add(f"{file} of {(process / 'comm').read_text().strip()}")


@pytest.fixture
def secret_file(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "secrets.yml"
    file.touch(0o600)
    file.write_text(f'blink_api_keys: ["{API_KEY}"]\nplanted_password: "{TYPED}"\n')
    yield file
    file.unlink()


def holders(folder: Path) -> dict[Path, int]:
    """Files below ``folder`` that hold a planted secret, with their modes."""
    found = {}
    for path in folder.rglob("*"):
        try:
            if path.is_file() and path.stat().st_size < 1 << 24 and API_KEY.encode() in path.read_bytes():
                found[path] = path.stat().st_mode & 0o777
        except OSError:  # a socket or a file that has gone
            continue
    return found


def test_a_planted_secret_shows_nowhere(running: Deployed, secret_file: Path) -> None:
    running.is_as_given = False
    with Watch(API_KEY, TYPED) as watch:
        run = running.run("site.yml", "-vvv", "--diff", "--extra-vars", f"@{secret_file}").require()
    assert watch.looks > 5
    assert watch.found == set()
    assert API_KEY not in run.output
    assert TYPED not in run.output
    assert holders(running.state_dir) == {running.state_dir / "api-keys": 0o600}, "only the key file, for its owner"


def test_a_run_that_fails_shows_none_either(running: Deployed, secret_file: Path) -> None:
    running.is_as_given = False
    settings = running.settings(lanes=0)
    run = running.run("site.yml", "-vvv", "--diff", "--extra-vars", f"@{secret_file}", **settings)
    assert run.rc != 0
    assert "engine.lanes" in run.output
    assert API_KEY not in run.output
    assert TYPED not in run.output
