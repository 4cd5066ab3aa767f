"""The runbook quotes what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import uvicorn.supervisors.multiprocess as uvicorn_supervisor

ROOT = Path(__file__).parents[3]
FOLDERS = ("blink", "images", "playbooks", "roles", "scripts")
HEADING = re.compile(r"^### `(.+)`$", re.MULTILINE)


def said() -> str:
    """What the code says; messages split over lines (adjacent literals, YAML's folded text) are joined."""
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    # It supervises the frontend's workers, and what it says of them is in the runbook too.
    files.append(Path(uvicorn_supervisor.__file__))
    texts = [
        path.read_text(errors="replace") for path in files if path.is_file() and path.suffix not in (".pyc", ".so")
    ]
    return re.sub(r"\s+", " ", re.sub(r'"\s*\n\s*f?"', "", " ".join(texts)))


def parts(symptom: str) -> list[str]:
    """The literal parts of a heading; a state of `blink status` is quoted in its source."""
    if symptom.startswith("state "):
        return [f'"{symptom.split()[1]}"']
    return [part.strip(" :,.") for part in symptom.split("…")]


def test_every_symptom_is_said_by_the_code() -> None:
    symptoms, source = HEADING.findall((ROOT / "docs" / "runbook.md").read_text()), said()
    assert len(symptoms) > 150
    assert [symptom for symptom in symptoms if any(part not in source for part in parts(symptom))] == []
