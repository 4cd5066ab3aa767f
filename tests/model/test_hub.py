"""Downloads from a hub on the loopback interface, by the hub's real client."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import load_file, save_file

from blink.errors import BlinkError
from blink.model import folders
from blink.model import hub as hub_module
from blink.model.prepare import prepare
from tests import tiny_model
from tests.model.hub_server import Hub, serve

SOURCE = "hf:org/name"


@pytest.fixture(autouse=True)
def _no_account(monkeypatch, tmp_path):
    """No token of the machine's user, and no cache of theirs."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    # The client keeps whole chunks of a broken transfer; the test files are smaller than its 10 MB.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    folder = tiny_model.write_checkpoint(tmp_path / "checkpoint")
    (folder / "README.md").write_text("# not needed")
    (folder / "pytorch_model.bin").write_bytes(b"not needed")
    return folder


@pytest.fixture
def hub(checkpoint):
    with serve(Hub.of_folder(checkpoint)) as running:
        yield running


def get(hub: Hub, dest: Path, source: str = SOURCE):
    return prepare(source, dest, endpoint=hub.url)


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("."))


def test_a_repository_becomes_a_prepared_folder(hub, checkpoint, tmp_path):
    model = get(hub, tmp_path / "model")
    assert model.manifest.revision == hub.commit
    assert model.manifest.identity == f"hf:org/name@{hub.commit}"
    assert model.fingerprint == prepare(str(checkpoint), tmp_path / "local").fingerprint
    assert not hub.fetched("README.md")
    assert not hub.fetched("pytorch_model.bin")
    assert not leftovers(tmp_path)
    model.verify()


def shard(checkpoint: Path) -> dict[str, np.ndarray]:
    """Split the weights into two files and an index; returns the tensors."""
    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for i, part in enumerate((names[::2], names[1::2]), 1):
        save_file({n: tensors[n] for n in part}, checkpoint / f"model-0000{i}-of-00002.safetensors")
        weight_map |= dict.fromkeys(part, f"model-0000{i}-of-00002.safetensors")
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tensors


def test_a_sharded_repository_brings_the_shards_of_its_index_only(checkpoint, tmp_path):
    tensors = shard(checkpoint)
    (checkpoint / "consolidated.safetensors").write_bytes(bytes(1000))
    with serve(Hub.of_folder(checkpoint)) as hub:
        model = get(hub, tmp_path / "model")
        assert all(np.array_equal(model.tensors()[n], a) for n, a in tensors.items())
        assert not hub.fetched("consolidated.safetensors")


@pytest.mark.parametrize("revision", ["main", "v1.0", "0123456789abcdef0123456789abcdef01234567"])
def test_every_kind_of_revision_is_resolved_to_the_commit(hub, tmp_path, revision):
    assert get(hub, tmp_path / "model", f"{SOURCE}@{revision}").manifest.revision == hub.commit


def test_a_mirror_that_states_no_sizes(hub, tmp_path):
    hub.states_sizes = False
    get(hub, tmp_path / "model").verify()


def test_a_second_time_brings_nothing(hub, tmp_path, capsys):
    get(hub, tmp_path / "model")
    hub.requests.clear()
    get(hub, tmp_path / "model")
    assert [path for _, path, _ in hub.requests] == ["/api/models/org/name/revision/main"]
    assert "nothing to do" in capsys.readouterr().err


def test_a_commit_that_is_there_needs_no_hub(hub, tmp_path):
    get(hub, tmp_path / "model")
    hub.requests.clear()
    get(hub, tmp_path / "model", f"{SOURCE}@{hub.commit}")
    assert not hub.requests


def test_a_new_commit_replaces_the_old(hub, tmp_path):
    first = get(hub, tmp_path / "model").fingerprint
    other = tiny_model.write_checkpoint(tmp_path / "other", seed=1)
    hub.files = {p.name: p.read_bytes() for p in other.iterdir()}
    hub.commit = "f" * 40
    assert get(hub, tmp_path / "model").fingerprint != first


def test_a_broken_connection_is_resumed_within_one_call(hub, tmp_path):
    hub.cut = {"model.safetensors": 50_000}
    get(hub, tmp_path / "model").verify()
    assert hub.fetched("model.safetensors") == [None, "bytes=50000-"]


def test_an_interrupted_download_is_continued_by_the_next_call(checkpoint, tmp_path):
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    shard(checkpoint)
    with serve(Hub.of_folder(checkpoint)) as hub:
        hub.cut, hub.broken_after = {second: 50_000}, 500
        with pytest.raises(BlinkError, match=r"answered with status 500.*try again"):
            get(hub, tmp_path / "model")
        assert not (tmp_path / "model").exists()
        assert leftovers(tmp_path) == [".model.download-0123456789abcdef"]
        hub.broken_after = None
        hub.requests.clear()
        get(hub, tmp_path / "model").verify()
        assert hub.fetched(second) == [None]
        for name in (first, "tokenizer.json", "config.json"):
            assert not hub.fetched(name)
    assert not leftovers(tmp_path)


def test_one_changed_bit_in_the_weights_is_refused(hub, tmp_path):
    """The file stays readable, so only the SHA-256 that the hub states tells."""
    hub.corrupt = "model.safetensors"
    with pytest.raises(BlinkError, match=r"model\.safetensors from hf:org/name arrived damaged"):
        get(hub, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    hub.corrupt = None
    get(hub, tmp_path / "model").verify()


def test_a_missing_repository(hub, tmp_path):
    with pytest.raises(BlinkError, match=r"org/other does not exist on http://127\.0\.0\.1.*HF_TOKEN"):
        get(hub, tmp_path / "model", "hf:org/other")


def test_a_private_repository(hub, tmp_path, monkeypatch):
    hub.token = "secret"
    with pytest.raises(BlinkError, match="or is private"):
        get(hub, tmp_path / "model")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert get(hub, tmp_path / "model").manifest.revision == hub.commit


def test_a_gated_repository(hub, tmp_path, monkeypatch):
    hub.token, hub.gated = "secret", True
    with pytest.raises(BlinkError, match=r"is gated.*accept its terms"):
        get(hub, tmp_path / "model")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert get(hub, tmp_path / "model").manifest.revision == hub.commit


def test_a_missing_revision(hub, tmp_path):
    with pytest.raises(BlinkError, match="has no revision 'v9'"):
        get(hub, tmp_path / "model", f"{SOURCE}@v9")


@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_a_hub_that_answers_with_an_error(hub, tmp_path, status):
    hub.status = status
    with pytest.raises(BlinkError, match=f"answered with status {status}"):
        get(hub, tmp_path / "model")


def test_nobody_listens(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{s.getsockname()[1]}"
        with pytest.raises(BlinkError, match=f"the hub at {url} cannot be reached") as e:
            prepare(SOURCE, tmp_path / "model", endpoint=url)
    assert "\n" not in str(e.value)


def test_a_hub_that_never_answers(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_module, "TIMEOUT_S", 0.3)
    hub.delay = threading.Event()
    with pytest.raises(BlinkError, match="cannot be reached"):
        get(hub, tmp_path / "model")


def test_offline_mode(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BlinkError, match="HF_HUB_OFFLINE is set"):
        get(hub, tmp_path / "model")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_repository_without_what_is_needed(hub, tmp_path, name):
    del hub.files[name]
    with pytest.raises(BlinkError, match=f"org/name has no {name}"):
        get(hub, tmp_path / "model")


def test_an_unsupported_model_is_known_before_its_weights_come(hub, tmp_path):
    hub.files["config.json"] = b'{"architectures": ["MambaForCausalLM"]}'
    with pytest.raises(BlinkError, match="MambaForCausalLM"):
        get(hub, tmp_path / "model")
    assert not hub.fetched("model.safetensors")


def test_too_little_space_is_known_before_the_weights_come(hub, tmp_path, monkeypatch):
    usage, weights = shutil.disk_usage(tmp_path), len(hub.files["model.safetensors"])
    free = folders._SLACK + weights - 1
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: usage._replace(free=free))
    # Beside the weights lie a few kilobytes of small files, which count as downloaded.
    monkeypatch.setattr(hub_module, "_bytes_in", lambda _: 0)
    with pytest.raises(BlinkError, match=rf"has {free} bytes available and {free + 1} are needed"):
        get(hub, tmp_path / "model")
    assert not hub.fetched("model.safetensors")


def test_the_endpoint_from_the_environment(hub, tmp_path):
    """HF_ENDPOINT is read when the client is imported, so a process of its own."""
    code = "import sys, pathlib, blink.model.prepare as p; p.prepare(sys.argv[1], pathlib.Path(sys.argv[2]))"
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", code, SOURCE, str(tmp_path / "model")]
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert (tmp_path / "model" / "blink-manifest.json").exists()
