"""Fetching a model from a HuggingFace hub, pinned to a commit.

A broken connection is resumed within a file by the hub's client; after a failed call the next one brings only the
files that are not there whole.

A token is taken from where the hub's own tools keep it (``HF_TOKEN``, or ``hf auth login``), and the hub's address
from ``HF_ENDPOINT`` where none is given.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from blink.errors import BlinkError
from blink.model import safetensors_file
from blink.model.folders import ensure_space
from blink.model.kept_files import KEPT, LICENSES, REMEDIES, REQUIRED, read_spec
from blink.model.progress import Progress
from blink.model.sources import HubSource

TIMEOUT_S = 10.0  # for an answer to begin; the client also gives up on a transfer that stalls this long


@dataclass(frozen=True)
class RemoteFile:
    """Size in bytes, and SHA-256 in hex where the hub stores the file by it (large files); None where not stated."""

    size: int | None
    sha256: str | None


@dataclass(frozen=True)
class Snapshot:
    """A repository at one commit, with its files by name."""

    repo: str
    commit: str
    endpoint: str | None
    files: dict[str, RemoteFile]


def resolve(source: HubSource, endpoint: str | None = None) -> Snapshot:
    """Ask the hub which commit ``source.revision`` is and what is in it. Raises BlinkError."""
    with _explained(source.repo, source.revision, endpoint):
        info = HfApi(endpoint=endpoint).model_info(
            source.repo, revision=source.revision, files_metadata=True, timeout=TIMEOUT_S
        )
    if info.sha is None:
        raise BlinkError(f"hub repository {source.repo}: the hub names no commit", "use a hub that does")
    files = {s.rfilename: RemoteFile(s.size, s.lfs.sha256 if s.lfs else None) for s in info.siblings or []}
    return Snapshot(source.repo, info.sha, endpoint, files)


def download(snapshot: Snapshot, folder: Path) -> None:
    """Bring the files that a prepared model keeps into ``folder``, continuing what an earlier call began there.

    Sizes are checked here; the SHA-256 of what arrived is for the caller, who hashes the files anyway.
    Raises BlinkError for a repository without safetensors weights, for a full disk, and for what the hub answers.
    """
    for name in REQUIRED:
        if name not in snapshot.files:
            raise BlinkError(f"hub repository {snapshot.repo} has no {name}", REMEDIES[name])
    small = [n for n in snapshot.files if n in KEPT or any(fnmatch(n, p) for p in LICENSES)]
    sharded = safetensors_file.INDEX in snapshot.files
    _fetch(snapshot, small + ([safetensors_file.INDEX] if sharded else []), folder)
    read_spec(folder)  # before gigabytes of a model that cannot be served
    weights = [safetensors_file.SINGLE]
    if sharded:
        weights = sorted(set(safetensors_file.read_index(folder / safetensors_file.INDEX).values()))
    for name in weights:
        if name not in snapshot.files:
            raise BlinkError(
                f"hub repository {snapshot.repo} has no {name}",
                "name a repository with safetensors weights (PyTorch .bin files are not read)",
            )
    _fetch(snapshot, weights, folder)


def _fetch(snapshot: Snapshot, names: list[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(snapshot.files[n].size or 0 for n in names)
    ensure_space(folder, max(0, total - _bytes_in(folder)))
    disable_progress_bars()  # they redraw one line with carriage returns, which is unreadable in a log
    with (
        _watched(f"downloading {snapshot.repo}", folder, total),
        _explained(snapshot.repo, snapshot.commit, snapshot.endpoint),
    ):
        snapshot_download(
            snapshot.repo,
            revision=snapshot.commit,
            local_dir=folder,
            cache_dir=folder / ".cache",
            allow_patterns=names,
            endpoint=snapshot.endpoint,
            etag_timeout=TIMEOUT_S,
        )
    # The client falls back to what is on the disk where the hub stops answering.
    for name in names:
        path, stated = folder / name, snapshot.files[name].size
        size = path.stat().st_size if path.exists() else -1
        if size < 0 or size != (size if stated is None else stated):
            raise BlinkError(
                f"hub repository {snapshot.repo}: {name} came with {max(size, 0)} of {stated} bytes",
                "try again: files that came whole are kept",
            )


@contextmanager
def _watched(label: str, folder: Path, total: int) -> Iterator[None]:
    """Report how much of ``folder`` is there, while the client's own threads fill it."""
    progress, done = Progress(label, total), threading.Event()
    progress.advance(_bytes_in(folder))

    def watch() -> None:
        while not done.wait(Progress.INTERVAL_S):
            progress.advance(_bytes_in(folder) - progress.done)

    thread = threading.Thread(target=watch, name="download progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # the client renames files as it completes them
            total += path.stat().st_size if path.is_file() else 0
    return total


@contextmanager
def _explained(repo: str, revision: str, endpoint: str | None) -> Iterator[None]:
    """Turn what the hub's client raises into one line with a remedy."""
    what = f"hub repository {repo}"
    address = endpoint or HfApi().endpoint
    try:
        yield
    except GatedRepoError:
        raise BlinkError(
            f"{what} is gated, and this token has no access to it",
            "accept its terms on the hub and set HF_TOKEN to a token of that account",
        ) from None
    except RevisionNotFoundError:
        raise BlinkError(f"{what} has no revision {revision!r}", "name an existing branch, tag or commit") from None
    except RepositoryNotFoundError:
        raise BlinkError(
            f"{what} does not exist on {address}, or is private", "correct its name, or set HF_TOKEN to a token for it"
        ) from None
    except HFValidationError as e:
        raise BlinkError(f"{what}: {' '.join(str(e).split())}", "correct the repository's name") from None
    except (OfflineModeIsEnabled, LocalEntryNotFoundError) as e:
        cause = e.__cause__ if isinstance(e, LocalEntryNotFoundError) else None
        if isinstance(e, OfflineModeIsEnabled) or isinstance(cause, OfflineModeIsEnabled):
            raise BlinkError(
                f"{what} is not on this machine, and HF_HUB_OFFLINE is set",
                "unset it, or copy a folder prepared elsewhere (docs/models.md, air-gapped)",
            ) from None
        raise _unreachable(address, cause or e) from None
    except HfHubHTTPError as e:
        status = e.response.status_code if e.response is not None else 0
        remedy = "set HF_TOKEN to a token with access to it" if status in (401, 403) else "try again later"
        raise BlinkError(f"{what}: {address} answered with status {status}", remedy) from None
    except Exception as e:
        # Transport errors are those of whichever HTTP client the hub's library is built on.
        if type(e).__module__.partition(".")[0] not in ("httpx", "httpx2", "httpcore", "httpcore2", "requests"):
            raise
        raise _unreachable(address, e) from None


def _unreachable(address: str, error: BaseException) -> BlinkError:
    detail = " ".join(str(error).split())[:160] or type(error).__name__
    return BlinkError(
        f"the hub at {address} cannot be reached ({detail})",
        "check the network and HF_ENDPOINT; files that came whole are kept for the next attempt",
    )
