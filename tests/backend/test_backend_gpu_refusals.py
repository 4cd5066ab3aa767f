"""What a backend with a GPU engine says without a GPU: the memory that it would take, then what is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from blink.registry import ENGINES
from tests.appliance import appliance

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU"),
    pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="needs cuda-bindings"),
]


@pytest.mark.parametrize("arguments", [("backend",), ("backend", "--check"), ("backend", "--prepare")])
@pytest.mark.parametrize("kind", [kind for kind, entry in ENGINES.items() if entry.on_gpu and entry.package])
def test_without_a_gpu(kind: str, arguments: tuple[str, ...], tmp_path: Path, tiny_model: Path) -> None:
    with appliance(tmp_path, tiny_model, engine={"kind": kind, "page_tokens": 16}) as a:
        done = a.call(*arguments)
        assert done.returncode == 1
        assert "no CUDA d" in done.stderr
        assert "install NVIDIA's driver" in done.stderr
        assert "Traceback" not in done.stderr
        if "--check" in arguments:
            assert "memory of the GPU: " in done.stdout
            assert "engine.pages " in done.stdout
            assert "graphs: 3 for decode, " in done.stdout


def test_buckets_that_do_not_end_where_they_must(tmp_path: Path, tiny_model: Path) -> None:
    with appliance(tmp_path, tiny_model, engine={"kind": "synthetic"}) as a:
        text = a.config_path.read_text()
        a.config_path.write_text(text.replace("lanes = 4", "lanes = 4\ndecode_buckets = [1, 3]"))
        assert "decode_buckets: not ascending up to 4" in a.call("backend", "--check").stderr


def test_the_reference_engine_has_no_graphs_to_prepare(tmp_path: Path, tiny_model: Path) -> None:
    with appliance(tmp_path, tiny_model) as a:
        done = a.call("backend", "--prepare")
        assert (done.returncode, done.stdout) == (0, "engine.kind reference has no graphs: nothing to do\n")


def test_without_the_cuda_packages(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "blocked" / "cuda"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'cuda'\", name='cuda')\n")
    monkeypatch.setenv("PYTHONPATH", str(blocked.parent))
    with appliance(tmp_path, tiny_model, engine={"kind": "native"}) as a:
        done = a.command("backend", "--check")
        assert done.returncode == 1
        assert "needs the Python package cuda: install requirements/gpu.txt" in done.stderr
