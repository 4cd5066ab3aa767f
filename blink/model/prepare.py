"""Turn a model from any source into a prepared folder, in one atomic step."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from blink.errors import BlinkError
from blink.model import manifest, safetensors_file
from blink.model.folders import ensure_space, lock, replace, scratch
from blink.model.gguf_arch import convert
from blink.model.gguf_file import GgufFile
from blink.model.gguf_tokenizer import GgufTokenizer
from blink.model.kept_files import model_files, read_spec
from blink.model.prepared import PreparedModel
from blink.model.progress import Progress
from blink.model.sources import COMMIT, FolderSource, GgufSource, HubSource, parse_source, stat_identity
from blink.model.tensors import check_tensors


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
            identity = stat_identity(model_files(parsed.path))
            return _prepare(source, dest, str(parsed.path), identity, lambda out: _from_folder(parsed.path, out))
        return _from_hub(source, dest, parsed, endpoint)


def _from_hub(source: str, dest: Path, parsed: HubSource, endpoint: str | None) -> PreparedModel:
    if COMMIT.fullmatch(parsed.revision):
        # A commit never changes, so the hub need not be reachable to know that nothing is to be done.
        current = _current(dest, _hub_identity(parsed.repo, parsed.revision))
        if current:
            return _unchanged(current, source)
    from blink.model import hub  # noqa: PLC0415 (half a second that other sources need not wait)

    snapshot = hub.resolve(parsed, endpoint)
    # One folder for each commit: it stays after a failure, and the next attempt continues in it.
    partial = dest.with_name(f".{dest.name}.download-{snapshot.commit[:16]}")

    def fetch(out: Path) -> None:
        hub.download(snapshot, partial)
        _from_folder(partial, out, move=True)

    expected = {n: f.sha256 for n, f in snapshot.files.items() if f.sha256}
    identity = _hub_identity(parsed.repo, snapshot.commit)
    model = _prepare(source, dest, snapshot.commit, identity, fetch, expected=expected)
    for leftover in dest.parent.glob(f".{dest.name}.download-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return model


def _hub_identity(repo: str, commit: str) -> str:
    return f"hf:{repo}@{commit}"


def _prepare(
    source: str,
    dest: Path,
    revision: str,
    identity: str,
    build: Callable[[Path], None],
    *,
    expected: Mapping[str, str] | None = None,
) -> PreparedModel:
    """Let ``build`` fill a new folder and put it in the place of ``dest``, unless ``identity`` is there already.

    ``expected`` has the SHA-256 of files whose origin states it.
    """
    current = _current(dest, identity)
    if current:
        return _unchanged(current, source)
    with scratch(dest) as out:
        build(out)
        size = sum(p.stat().st_size for p in out.iterdir())
        built = manifest.build_manifest(
            out, source=source, revision=revision, identity=identity, progress=Progress("hashing the model", size)
        )
        for name, record in built.files.items():
            if expected and expected.get(name, record.sha256) != record.sha256:
                raise BlinkError(f"{name} from {source} arrived damaged (its SHA-256 differs)", "prepare it again")
        built.write(out)
        _check(source, PreparedModel.open(out))
        replace(dest, out)
    return PreparedModel.open(dest)


def _check(source: str, model: PreparedModel) -> None:
    """Find now what would stop a server from starting. Raises BlinkError."""
    tokens, rows = model.tokenizer().vocab_size, int(model.config["vocab_size"])
    if tokens > rows:
        raise BlinkError(
            f"{source}: its tokenizer has {tokens} tokens, and the model knows {rows}",
            "use the tokenizer that belongs to the model",
        )


def _unchanged(current: PreparedModel, source: str) -> PreparedModel:
    print(f"{current.path} holds {source} already: nothing to do", file=sys.stderr)
    return current


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
    return model if model.manifest.identity == identity else None


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
            # Written out where there is none, since transformers has a default of its own for each architecture.
            "config.json": manifest.canonical_json({"bos_token_id": None, "pad_token_id": None} | config | generation),
            "generation_config.json": manifest.canonical_json(generation),
        }
        total = sum(t.nbytes for t in tensors)
        ensure_space(out, total + sum(len(t.encode()) for t in texts.values()))
        for name, text in texts.items():
            (out / name).write_text(text, encoding="utf-8")
        progress = Progress(f"dequantizing {path.name}", total)
        safetensors_file.write_tensors(out / "model.safetensors", tensors, progress)


def _from_folder(folder: Path, out: Path, move: bool = False) -> None:
    # What is wrong is found before anything is copied.
    check_tensors(folder, read_spec(folder), {e.name: e.shape for _, e in safetensors_file.iter_entries(folder)})
    files = model_files(folder)
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
