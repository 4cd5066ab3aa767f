"""The role tensorrt with wheels that are stand-ins: pip, environment and import are real, the library is not."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playbook import Run, playbook

pytestmark = pytest.mark.fleet

VERSION = "10.15.1.29"


def wheel(folder: Path, version: str, code: str) -> None:
    """A wheel of tensorrt-cu13 whose module is ``code``."""
    info = f"tensorrt_cu13-{version}.dist-info"
    files = {
        "tensorrt/__init__.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tensorrt-cu13\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in files) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"tensorrt_cu13-{version}-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("tensorrt")
    subprocess.run([sys.executable, "-m", "venv", root / "venv"], check=True)
    (root / "wheels").mkdir()
    wheel(root / "wheels", VERSION, f"__version__ = '{VERSION}'")
    wheel(root / "wheels", "11.0.0.1", "raise ImportError('libnvinfer.so.11: cannot open shared object file')")
    return {"blink_venv": str(root / "venv"), "tensorrt_wheels": str(root / "wheels"), "tensorrt_version": VERSION}


def install(variables: dict[str, Any], *arguments: str, **others: Any) -> Run:
    return playbook("tests/vendor/tensorrt.yml", variables | others, *arguments)


def test_it_is_installed_once(variables: dict[str, Any]) -> None:
    assert install(variables, "--check").require().count("changed") == 1
    run = install(variables).require()
    assert run.count("changed") > 0
    assert not (Path(variables["blink_venv"]) / "tensorrt-wheels").exists()
    assert install(variables).require().count("changed") == 0


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"tensorrt_version": "11.0.0.1"}, "libnvinfer.so.11: cannot open shared object file. If a library is missing"),
        ({"tensorrt_wheels": "/nowhere"}, "tensorrt_wheels is /nowhere, which is no folder"),
        ({"tensorrt_version": "9.9.9"}, "No matching distribution found for tensorrt-cu13==9.9.9"),
    ],
    ids=["bindings-alone", "no-folder", "version"],
)
def test_what_cannot_serve_is_refused(variables: dict[str, Any], others: dict[str, Any], message: str) -> None:
    run = install(variables, **others)
    assert run.rc != 0
    assert message in run.words
