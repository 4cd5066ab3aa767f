"""blink-manifest.json: what a prepared model folder holds and where it came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import blink
from blink.errors import BlinkError
from blink.model.progress import Progress

NAME = "blink-manifest.json"
FORMAT = 1  # raised when a preparation would write other bytes from the same source
_PREPARE = "prepare the model again (`blink model prepare SOURCE DEST`)"


class FileRecord(BaseModel):
    """One file of the folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """The whole file. ``identity`` is what a second preparation compares to know that it has nothing to do."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: int
    blink_version: str
    source: str
    revision: str
    identity: str
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    files: dict[Annotated[str, Field(pattern=r"^[^/\x00]+$")], FileRecord]

    def write(self, folder: Path) -> None:
        """Write the file into ``folder``."""
        (folder / NAME).write_text(self.model_dump_json(indent=2) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of ``folder``. Raises BlinkError where it is missing or damaged."""
    path = folder / NAME
    try:
        found = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise BlinkError(f"{folder} is not a prepared model (it has no {NAME})", _PREPARE) from None
    except OSError as e:
        raise BlinkError(f"{path}: {e.strerror}", "let this user read the folder, or " + _PREPARE) from None
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "file"
        raise BlinkError(f"{path} is damaged ({where}: {first['msg']})", _PREPARE) from None
    if found.format != FORMAT:
        raise BlinkError(f"{path} has format {found.format}, and this version reads {FORMAT}", _PREPARE)
    return found


def build_manifest(folder: Path, *, source: str, revision: str, identity: str, progress: Progress) -> Manifest:
    """Hash every file of ``folder``."""
    files = {
        p.name: FileRecord(size=p.stat().st_size, sha256=sha256_of(p, progress))
        for p in sorted(folder.iterdir())
        if p.name != NAME
    }
    return Manifest(
        format=FORMAT,
        blink_version=blink.__version__,
        source=source,
        revision=revision,
        identity=identity,
        fingerprint=fingerprint({name: f.sha256 for name, f in files.items()}),
        files=files,
    )


def fingerprint(sha256: Mapping[str, str]) -> str:
    """What a frontend and a backend compare: SHA-256, in hex, over the configuration, tokenizer and weights.

    It is the hash of the lines that ``sha256sum`` prints for those files in the order of their names, so that
    ``LC_ALL=C sha256sum config.json *.safetensors tokenizer.json | sha256sum`` gives it too.
    """
    lines: Iterable[str] = (
        f"{digest}  {name}\n"
        for name, digest in sorted(sha256.items())
        if name in ("config.json", "tokenizer.json") or name.endswith(".safetensors")
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(1 << 22):
            digest.update(chunk)
            if progress:
                progress.advance(len(chunk))
    return digest.hexdigest()


def canonical_json(value: object) -> str:
    """JSON with sorted keys and stable layout, for files whose bytes are hashed."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
