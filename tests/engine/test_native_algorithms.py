"""The file of the native engine's chosen algorithms. Needs the CUDA packages, and no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from blink.engine.native.algorithms import Choices

HERE = {"gpu": "NVIDIA H200", "cublasLt": "130101", "dtype": "float16"}


def test_what_was_chosen_is_kept_for_the_same_gpu_library_and_type(tmp_path: Path) -> None:
    file = tmp_path / "new" / "products.json"
    choices = Choices(file, HERE)
    assert choices.get("a product") is None
    choices.put("a product", b"\1\2")
    assert choices.get("a product") == b"\1\2"
    assert not file.exists()
    choices.save()
    assert Choices(file, HERE).get("a product") == b"\1\2"
    for field in HERE:
        assert Choices(file, HERE | {field: "other"}).get("a product") is None


def test_nothing_is_written_where_nothing_was_chosen(tmp_path: Path) -> None:
    Choices(tmp_path / "products.json", HERE).save()
    Choices(None, HERE).save()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", '{"identity": 1}', '{"identity": %s, "algorithms": {"a": "no hex"}}', "\0"])
def test_a_file_that_cannot_be_read_is_empty(tmp_path: Path, text: str) -> None:
    file = tmp_path / "products.json"
    file.write_text(text.replace("%s", str(HERE).replace("'", '"')))
    assert Choices(file, HERE).get("a") is None
