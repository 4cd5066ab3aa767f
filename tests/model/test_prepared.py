from __future__ import annotations

import json
from pathlib import Path

import pytest

from blink.errors import BlinkError
from blink.model.prepare import prepare
from blink.model.prepared import PreparedModel
from tests import tiny_model


@pytest.fixture
def folder(tmp_path) -> Path:
    return prepare(str(tiny_model.write_checkpoint(tmp_path / "checkpoint")), tmp_path / "model").path


def test_the_default_model(smollm):
    smollm.verify()
    assert len(smollm.tensors()) == 272
    assert "lm_head.weight" not in smollm.tensors()
    assert smollm.config["tie_word_embeddings"] is True
    assert smollm.eos_ids == [0, 2]
    assert len(smollm.fingerprint) == 32


def test_a_missing_folder(tmp_path):
    with pytest.raises(BlinkError, match=r"none is not a prepared model.*blink model prepare"):
        PreparedModel.open(tmp_path / "none")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_or_truncated_file(folder, name):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1])
    with pytest.raises(BlinkError, match=rf"{name} has {len(data) - 1} bytes and not {len(data)}"):
        PreparedModel.open(folder)
    (folder / name).unlink()
    with pytest.raises(BlinkError, match=f"{name}: No such file"):
        PreparedModel.open(folder)


@pytest.mark.parametrize("content", ["", "{}", "[]", "nonsense", '{"format": "x"}'])
def test_a_damaged_manifest(folder, content):
    (folder / "blink-manifest.json").write_text(content)
    with pytest.raises(BlinkError, match=r"blink-manifest\.json is damaged"):
        PreparedModel.open(folder)


def test_another_format_is_prepared_again(folder):
    path = folder / "blink-manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(BlinkError, match="has format 99"):
        PreparedModel.open(folder)
    assert prepare(str(folder.parent / "checkpoint"), folder).manifest.format == 1


def test_a_frontend_needs_no_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(BlinkError, match=r"model\.safetensors"):
        PreparedModel.open(folder)
    model = PreparedModel.open(folder, weights=False)
    assert model.tokenizer().vocab_size > 0
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BlinkError, match=r"tokenizer\.json"):
        PreparedModel.open(folder, weights=False)


def test_a_manifest_that_names_a_file_elsewhere(folder):
    path = folder / "blink-manifest.json"
    value = json.loads(path.read_text())
    value["files"]["../../etc/passwd"] = value["files"]["config.json"]
    path.write_text(json.dumps(value))
    with pytest.raises(BlinkError, match="damaged"):
        PreparedModel.open(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_verify_finds_one_changed_bit(folder, name):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(BlinkError, match=f"{name} is damaged"):
        _open_without_reading(folder).verify()


def _open_without_reading(folder: Path) -> PreparedModel:
    """A changed bit may make JSON unreadable, which opening finds; verify() must find it all the same."""
    from blink.model.manifest import read_manifest

    model = object.__new__(PreparedModel)
    model.path, model.manifest = folder, read_manifest(folder)
    return model


def test_an_unreadable_configuration(folder):
    size = (folder / "config.json").stat().st_size
    (folder / "config.json").write_text("x" * size)
    with pytest.raises(BlinkError, match=r"config\.json is not a JSON object"):
        PreparedModel.open(folder)
    (folder / "config.json").write_bytes(b"\xff" * size)
    with pytest.raises(BlinkError, match=r"config\.json is not UTF-8 text"):
        PreparedModel.open(folder)


def _with(folder: Path, **files: object) -> PreparedModel:
    """A prepared model of the checkpoint with other small files."""
    source = folder.parent / "checkpoint"
    for name, value in files.items():
        path = source / name.replace("__", ".")
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    return prepare(str(source), folder)


def test_chat_template_sources_in_order(folder, tmp_path):
    messages = [{"role": "user", "content": "Hi"}]
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    model = _with(
        folder, tokenizer_config__json={"chat_template": named, "bos_token": {"content": "<b>"}, "image_token": "<i>"}
    )
    assert model.chat_template().render(messages) == "named"
    model = _with(folder, chat_template__json={"chat_template": "json"})
    assert model.chat_template().render(messages) == "json"
    model = _with(folder, chat_template__jinja="jinja {{ bos_token }} {{ image_token }}")
    assert model.chat_template().render(messages) == "jinja <b> <i>"
    (tmp_path / "mine.jinja").write_text("mine")
    assert model.chat_template(tmp_path / "mine.jinja").render(messages) == "mine"
    with pytest.raises(BlinkError, match=r"none\.jinja: No such file"):
        model.chat_template(tmp_path / "none.jinja")


def test_no_chat_template(folder):
    model = _with(folder, tokenizer_config__json={"eos_token": "<eos>"})
    with pytest.raises(BlinkError, match=r"has no chat template.*/v1/completions"):
        model.chat_template()


def test_eos_ids_come_from_the_generation_configuration_first(folder):
    assert _with(folder, generation_config__json={"eos_token_id": [7, 3, 7]}).eos_ids == [7, 3]
    assert _with(folder, generation_config__json={"temperature": 0.6}).eos_ids == [0]
    assert _with(folder, generation_config__json={"temperature": 0.6}).generation_config == {"temperature": 0.6}
