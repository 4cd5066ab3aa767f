"""What a user may get wrong: exit code 1 and one line with the cause and the remedy, never a traceback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.appliance import Appliance, appliance, call_blink
from tests.tiny_model import write_checkpoint

pytestmark = pytest.mark.e2e


def refused(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Assert that a command ended as a user's mistake should, with ``parts`` in its message."""
    assert result.returncode == 1, result
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("blink: ")]
    assert lines == [result.stderr.splitlines()[-1]], result.stderr
    for part in parts:
        assert part in lines[0]


@pytest.fixture
def model(tmp_path: Path, tiny_model: Path) -> Path:
    """A copy of the prepared folder, to be damaged."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.fixture
def backend(tmp_path: Path, model: Path) -> Iterator[Any]:
    """Calls ``blink backend`` on the damaged folder and changed sections of the configuration."""
    made: list[Appliance] = []

    def run(**sections: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        made.append(Appliance(tmp_path / "run", model, **sections))
        return made[0].call("backend")

    yield run
    assert not list(made[0].ring_dir.glob("*")), "a refused backend leaves no ring"
    made[0].close()


def replace_bytes(file: Path, old: bytes, new: bytes) -> None:
    data = file.read_bytes()
    assert data.count(old) == 1
    assert len(old) == len(new)
    file.write_bytes(data.replace(old, new))


def test_no_model_folder(tmp_path: Path) -> None:
    """As a process; the others are calls."""
    with appliance(tmp_path, tmp_path / "none") as a:
        refused(a.command("backend"), str(tmp_path / "none"), "blink model prepare")


def test_a_folder_that_is_not_prepared(backend: Any, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "raw")
    refused(backend(model={"path": tmp_path / "raw"}), str(tmp_path / "raw"), "blink model prepare")


def test_an_unsupported_architecture_in_the_folder(backend: Any, model: Path) -> None:
    replace_bytes(model / "config.json", b'"LlamaForCausalLM"', b'"OtherForCausal_1"')
    refused(backend(), "OtherForCausal_1", "is not supported")


def test_weights_that_are_cut_off(backend: Any, model: Path) -> None:
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)
    refused(backend(), str(weights), "prepare the model again")


def test_weights_whose_header_is_damaged(backend: Any, model: Path) -> None:
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[8:40] = bytes(32)
    weights.write_bytes(data)
    refused(backend(), str(weights))


def test_a_tensor_that_is_missing(backend: Any, model: Path) -> None:
    replace_bytes(
        model / "model.safetensors", b"model.layers.1.mlp.up_proj.weight", b"model.layers.1.mlp.up_porj.weight"
    )
    refused(backend(), "model.layers.1.mlp.up_proj.weight")


def test_weights_that_are_not_numbers(backend: Any, model: Path) -> None:
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-4000:] = b"\xff" * 4000
    weights.write_bytes(data)
    refused(backend(), "the engine could not run its first step", "blink model check")


@pytest.mark.parametrize(
    ("sections", "parts"),
    [
        (
            {"engine": {"max_context": 2048, "pages": 1 << 26}},
            ("engine.pages ", " = ", "are available: lower engine.pages"),
        ),
        ({"engine": {"max_context": 4096, "pages": 512}}, ("engine.max_context: 4096 exceeds the 2048 tokens",)),
        ({"engine": {"kind": "tensorrt"}}, ("engine.kind tensorrt is not in this release",)),
        ({"ring": {"transport": "verbs"}}, ("rdma: ring.transport verbs needs this section",)),
        ({"instance": {"ring_dir": "/proc/ring"}}, ("instance.ring_dir /proc/ring",)),
        ({"ring": {"slots": 63}}, ("slots: 63 is not a multiple",)),
        ({"frontend": {"workers": 2}}, ("ring.partitions: 2 frontend.workers and the operator need 3 partitions",)),
        ({"engine": {"lane": 3}}, ("engine.lane", "Extra inputs are not permitted")),
    ],
)
def test_a_configuration_that_cannot_be_served(
    backend: Any, sections: dict[str, dict[str, Any]], parts: tuple[str, ...]
) -> None:
    refused(backend(**sections), *parts)


def test_a_required_key_that_is_missing(tmp_path: Path, tiny_model: Path) -> None:
    with appliance(tmp_path, tiny_model) as a:
        text = a.config_path.read_text()
        a.config_path.write_text(text.replace("served_name = 'tiny'\n", ""))
        for command in ("backend", "frontend", "status", "smoke"):
            refused(a.call(command), str(a.config_path), "model.served_name: Field required")


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "blink.toml").write_text("[instance\n")
    refused(call_blink("backend", "--config", str(tmp_path / "blink.toml")), "blink.toml is not TOML")
    refused(call_blink("status", "--config", str(tmp_path / "none.toml")), "none.toml: No such file or directory")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_a_tmpfs_too_small_for_the_ring(backend: Any, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        refused(
            backend(instance={"ring_dir": small / "ring"}),
            f"instance.ring_dir {small}/ring: the ring needs 5 MiB, and its file system has ",
            "enlarge that tmpfs",
        )
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_file_size_limit_below_the_ring(tmp_path: Path, tiny_model: Path) -> None:
    with appliance(tmp_path, tiny_model) as a:
        command = f"ulimit -f 100; exec python -m blink backend --config {a.config_path}"
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        refused(result, str(a.ring_dir), "File too large")
        assert list(a.ring_dir.iterdir()) == []


def test_a_port_that_is_taken(tmp_path: Path, tiny_model: Path) -> None:
    with appliance(tmp_path, tiny_model) as a, socket.socket() as s:
        s.bind(("127.0.0.1", a.port))
        s.listen()
        refused(a.command("frontend", timeout=30), str(a.port), "frontend.port")


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_a_checkpoint_that_cannot_be_prepared(tmp_path: Path, config: dict[str, Any], part: str) -> None:
    source = write_checkpoint(tmp_path / "source", **config)
    refused(call_blink("model", "prepare", str(source), str(tmp_path / "model")), part)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("data", [b"", b"GGUF", b"GGUF" + bytes(20), b"not a model" * 100], ids=str)
def test_a_gguf_file_that_is_damaged(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(data)
    refused(call_blink("model", "prepare", str(tmp_path / "model.gguf"), str(tmp_path / "model")), "model.gguf")
    assert not (tmp_path / "model").exists()


def test_a_model_folder_whose_contents_changed(model: Path) -> None:
    data = bytearray((model / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (model / "model.safetensors").write_bytes(data)
    refused(call_blink("model", "check", str(model)), "model.safetensors is damaged")
