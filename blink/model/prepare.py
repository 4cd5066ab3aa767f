"""Turn a model from any source into a prepared folder, in one atomic step."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from blink.errors import BlinkError
from blink.model import manifest, safetensors_file
from blink.model.folders import ensure_space, lock, replace, scratch
from blink.model.gguf_arch import convert
from blink.model.gguf_file import GgufFile
from blink.model.gguf_tokenizer import GgufTokenizer
from blink.model.prepared import PreparedModel
from blink.model.progress import Progress
from blink.model.sources import FolderSource, GgufSource, parse_source, stat_identity
from blink.model.spec import ModelSpec

# What a prepared folder takes over from a HuggingFace folder besides its weights.
REQUIRED = ("config.json", "tokenizer.json")
OPTIONAL = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
LICENSES = ("LICENSE*", "NOTICE*")


def prepare(source: str, dest: Path, *, endpoint: str | None = None) -> PreparedModel:
    """Prepare ``source`` (see :func:`blink.model.sources.parse_source`) as the folder ``dest``, and open it.

    A folder that holds the same source already is left as it is; one that holds another model is replaced in one
    step, so that a reader sees the old or the new and nothing between. ``endpoint`` is the address of a hub other
    than the public one. Raises BlinkError; ``dest`` is then as it was.
    """
    parsed = parse_source(source)
    dest = dest.resolve()
    with lock(dest):
        if isinstance(parsed, GgufSource):
            return _prepare(source, dest, parsed.revision, parsed.identity, lambda out: _from_gguf(parsed.path, out))
        if isinstance(parsed, FolderSource):
            identity = stat_identity(_files(parsed.path))
            return _prepare(source, dest, str(parsed.path), identity, lambda out: _from_folder(parsed.path, out))
        from blink.model import hub  # noqa: PLC0415 (the hub's client is not installed everywhere)

        commit = hub.resolve(parsed, endpoint)
        partial = dest.with_name(f".{dest.name}.download")  # stays after a failure: the next attempt resumes it

        def fetch(out: Path) -> None:
            hub.download(parsed.repo, commit, partial, endpoint)
            _from_folder(partial, out, move=True)

        model = _prepare(source, dest, commit, f"hf:{parsed.repo}@{commit}", fetch)
        shutil.rmtree(partial, ignore_errors=True)
        return model


def _prepare(source: str, dest: Path, revision: str, identity: str, build: Callable[[Path], None]) -> PreparedModel:
    """Let ``build`` fill a new folder and put it in the place of ``dest``, unless ``identity`` is there already."""
    current = _current(dest, identity)
    if current:
        print(f"{dest} holds {source} already: nothing to do", file=sys.stderr)
        return current
    with scratch(dest) as out:
        build(out)
        size = sum(p.stat().st_size for p in out.iterdir())
        manifest.build_manifest(
            out, source=source, revision=revision, identity=identity, progress=Progress("hashing the model", size)
        ).write(out)
        ModelSpec.from_config(PreparedModel.open(out).config)
        replace(dest, out)
    return PreparedModel.open(dest)


def _current(dest: Path, identity: str) -> PreparedModel | None:
    """The model at ``dest`` if it came from ``identity`` and is whole."""
    if not dest.exists():
        return None
    if not dest.is_dir() or (any(dest.iterdir()) and not (dest / manifest.NAME).exists()):
        raise BlinkError(f"{dest} exists and is not a prepared model", "name a new folder, or remove it")
    try:
        model = PreparedModel.open(dest)
    except BlinkError:
        return None
    found = model.manifest
    return model if (found.identity, found.format) == (identity, manifest.FORMAT) else None


def _from_gguf(path: Path, out: Path) -> None:
    with GgufFile(path) as file:
        config, tensors = convert(file)
        tokenizer = GgufTokenizer(path, file.metadata)
        eos, special = tokenizer.eos_ids(), tokenizer.special_ids
        if not eos:
            raise BlinkError(f"{path} names no end-of-sequence token", "use a conversion that stores it")
        generation = {"eos_token_id": eos[0] if len(eos) == 1 else eos} | {
            key: special[name]
            for key, name in (("bos_token_id", "bos_token"), ("pad_token_id", "pad_token"))
            if special[name] is not None
        }
        texts = tokenizer.files() | {
            "config.json": manifest.canonical_json(config | generation),
            "generation_config.json": manifest.canonical_json(generation),
        }
        total = sum(t.nbytes for t in tensors)
        ensure_space(out, total + sum(len(t.encode()) for t in texts.values()))
        for name, text in texts.items():
            (out / name).write_text(text, encoding="utf-8")
        progress = Progress(f"dequantizing {path.name}", total)
        safetensors_file.write_tensors(out / "model.safetensors", tensors, progress)


def _files(folder: Path) -> list[Path]:
    """The files of a HuggingFace folder that a prepared folder keeps. Raises BlinkError where it is incomplete."""
    for name in REQUIRED:
        if not (folder / name).is_file():
            raise BlinkError(f"{folder} has no {name}", "name a model folder in HuggingFace layout")
    files = [folder / name for name in (*REQUIRED, *OPTIONAL) if (folder / name).is_file()]
    files += [p for pattern in LICENSES for p in sorted(folder.glob(pattern)) if p.is_file()]
    weights = safetensors_file.shards(folder)
    index = folder / safetensors_file.INDEX
    return files + ([index] if index.exists() else []) + weights


def _from_folder(folder: Path, out: Path, move: bool = False) -> None:
    for _ in safetensors_file.iter_entries(folder):
        pass  # a damaged file is found before it is copied
    files = _files(folder)
    if move:
        for file in files:
            shutil.move(file, out / file.name)
        return
    total = sum(f.stat().st_size for f in files)
    ensure_space(out, total)
    progress = Progress(f"copying {folder.name}", total)
    for file in files:
        with file.open("rb") as source, (out / file.name).open("wb") as target:
            while chunk := source.read(1 << 22):
                target.write(chunk)
                progress.advance(len(chunk))
