"""What makes the inspection of the graphs out of date. Needs the CUDA packages, and no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings")

from blink.backend.gpu.inspection import GraphRecord, Inspection, differences, read_inspection

IDENTITY: dict[str, Any] = {
    "model": "ab", "kernels": "cd", "toolchain": "13.0", "driver": "580.1", "gpu": "NVIDIA H200", "gpu_uuid": "GPU-1",
    "products": "ef",
    "engine": {"lanes": 8, "dtype": "float16"}, "decode_buckets": [1, 8], "prefill_buckets": [64],
}  # fmt: skip
MADE = Inspection(IDENTITY, (GraphRecord("DECODE", 8, {"KERNEL": 300}, 1.5, 2.5, 1 << 20),), (1, 2, 3))


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    MADE.write(tmp_path / "new" / "graphs.json")
    assert read_inspection(tmp_path / "new" / "graphs.json") == MADE
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["graphs.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"identity": {}, "graphs": [{"kind": 1}], "answer": []}', "\0"])
def test_what_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text)
    assert read_inspection(tmp_path / "m.json") is None
    assert differences(None, IDENTITY) == ["nothing is there"]


def test_the_same_is_up_to_date() -> None:
    assert differences(MADE, IDENTITY) == []


@pytest.mark.parametrize("field", [name for name in IDENTITY if name != "engine"])
def test_every_field_counts(field: str) -> None:
    assert differences(MADE, IDENTITY | {field: "other"}) == [field]


def test_every_setting_counts_and_is_named() -> None:
    now = IDENTITY | {"engine": {"lanes": 9, "dtype": "bfloat16"}}
    assert differences(MADE, now) == ["engine.lanes", "engine.dtype"]
