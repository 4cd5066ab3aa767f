"""docs/development.md's recipe for a new engine: one line in the table and one folder, and nothing else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from blink.backend.server import check
from blink.errors import BlinkError
from blink.registry import ENGINES, EngineEntry
from blink.ring.layout import Reason
from blink.role_lists import render
from tests.appliance import Appliance, appliance
from tests.backend.test_backend_process import Worker

NEEDS = """
def needs(spec, settings):
    return {"engine.pages": settings.pages << 20, "a table": 3 << 20}
"""
LOAD = """
class Counting:
    def __init__(self, buffers):
        self.buffers = buffers

    def run(self):
        b, control = self.buffers, self.buffers.control[0]
        rows = int(control["rows"])
        b.out_token[:rows] = b.row_kv_len[:rows]
        control["error"] = 0
        control["done"] = control["step"]

    def close(self):
        pass


def load(model, spec, settings, buffers):
    return Counting(buffers)
"""
BLINK = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from blink.registry import ENGINES, EngineEntry
ENGINES["counting"] = EngineEntry("counting", on_gpu=False)
from blink.cli import main
sys.exit(main())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that has the engine's, found by this process too."""
    package = tmp_path / "engines" / "counting"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(NEEDS)
    (package / "load.py").write_text(LOAD)
    monkeypatch.syspath_prepend(package.parent)
    return package.parent


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_configuration_and_the_check_know_it_by_its_line(
    on_gpu: bool, folder: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if on_gpu and importlib.util.find_spec("cuda") is None:
        pytest.skip("needs cuda-bindings")
    with appliance(folder.parent, tiny_model, engine={"kind": "counting", "page_tokens": 16}) as a:
        with pytest.raises(BlinkError, match="Input should be 'reference', 'native', 'synthetic' or 'tensorrt'"):
            a.config  # noqa: B018 - reads the file
        monkeypatch.setitem(ENGINES, "counting", EngineEntry("counting", on_gpu=on_gpu))
        assert a.config.engine.on_gpu == on_gpu
        with suppress(BlinkError):  # of a machine without a GPU, after the sum
            check(a.config)
        place = "memory of the GPU" if on_gpu else "memory"
        assert f"{place}: engine.pages 256 MiB + a table 3 MiB + " in capsys.readouterr().out


def test_the_backend_serves_with_it(folder: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "counting", EngineEntry("counting", on_gpu=False))
    with appliance(folder.parent, tiny_model, engine={"kind": "counting"}) as a, serving(a, folder) as backend:
        worker = Worker(a)
        worker.wait_up()
        handle = worker.submit(4)  # to a prompt of three tokens
        worker.wait(handle)
        assert (worker.tokens[handle], worker.end[handle]) == ([3, 4, 5, 6], Reason.LENGTH)
        worker.client.close()
        backend.terminate()
        assert backend.wait(10) == 0


@contextmanager
def serving(a: Appliance, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``blink backend`` with the line in its table."""
    command = [sys.executable, "-c", BLINK, str(folder), "backend", "--config", str(a.config_path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_roles_know_it_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = "\n      blink_engine:\n        type: str\n        required: true\n        choices: [reference]\n"
    defaults = "backend_gpu: \"{{ blink_engine in ['native'] }}\"\n"
    monkeypatch.setitem(ENGINES, "counting", EngineEntry("counting", on_gpu=True))
    assert "choices: [reference, native, synthetic, tensorrt, counting]\n" in render(specs)
    assert "blink_engine in ['native', 'synthetic', 'tensorrt', 'counting'] }}" in render(defaults)
