"""Pack a set: one file that an appliance is installed from where there is no network. `make bundle` runs this.

It needs the environment that Blink is built in and, for another processor than this machine's, requirements/cross.txt.
Unchanged parts are taken from the last run's build/set.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from blink.bfb.command import check as check_bfb  # noqa: E402
from blink.bfb.read import read_bfb  # noqa: E402
from blink.bundle.manifest import NAME, Entry, Manifest, is_safe_path  # noqa: E402
from blink.bundle.verify import NAMESPACE, check_content, signature_of  # noqa: E402
from blink.errors import BlinkError  # noqa: E402
from blink.release import release_id  # noqa: E402
from scripts.sbom import bill_of_materials  # noqa: E402

SECONDS = 3600


def run(*command: str | Path, **more: Any) -> str:
    """What ``command`` prints. Raises BlinkError where it fails; its own messages are on stderr by then."""
    try:
        done = subprocess.run(
            [str(c) for c in command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS, **more
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as e:
        raise BlinkError(f"{command[0]}: {e}", "see the lines above") from None
    return done.stdout.strip()


def pack_half(arch: str, locks: Sequence[str], python: str, build: Path, stage: Path) -> dict[str, Any]:
    """The wheels of one half, as the role `release` would pack them; see scripts/bundle."""
    name = f"{'-'.join([*locks, python, arch])}.tar"
    print(f"packing {name}", file=sys.stderr)
    build.mkdir(parents=True, exist_ok=True)
    half = run("scripts/bundle", build / name, python, arch, *locks)
    folder = stage / "halves"
    folder.mkdir(exist_ok=True)
    os.link(build / name, folder / name)
    (folder / f"{name}.id").write_text(half + "\n")
    return {"file": f"halves/{name}", "id": half, "python": python, "arch": arch, "locks": list(locks)}


def half_release(half: Path) -> str:
    """The id of the code in a half's wheel of Blink; see blink.release."""
    with tarfile.open(half) as tar, tempfile.TemporaryDirectory() as folder:
        (wheel,) = [m for m in tar if m.name.startswith("wheels/blink_serve-")]
        with zipfile.ZipFile(io.BytesIO(tar.extractfile(wheel).read())) as archive:  # type: ignore[union-attr]
            archive.extractall(folder)  # noqa: S202 - of a wheel that was built a moment ago
        return release_id([Path(folder) / "blink"])


def pack_control(python: str, arch: str, stage: Path) -> None:
    """What Ansible needs on the operator's machine."""
    folder = stage / "control"
    folder.mkdir()
    platforms = [f"--platform=manylinux_2_{n}_{arch}" for n in (17, 24, 26, 27, 28, 31, 34)]
    run(
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--require-hashes", "--only-binary", ":all:", "--python-version", python, "--implementation", "cp",
        "--abi", f"cp{python.replace('.', '')}", "--abi", "abi3", "--abi", "none", *platforms,
        f"--platform=manylinux2014_{arch}", "--dest", folder, "--requirement", "requirements/control.txt",
    )  # fmt: skip


def pack_checkout(stage: Path) -> dict[str, Any]:
    """Playbooks, roles and sources as they are now; git says which files belong to it."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    with tarfile.open(stage / "checkout.tar", "w") as tar:
        for name in sorted(filter(None, listed)):
            path = ROOT / name
            if path.is_file() or path.is_symlink():
                tar.add(path, f"blink/{name}", recursive=False, filter=_anonymous)
    changed = run("git", "status", "--porcelain")
    return {"commit": run("git", "rev-parse", "HEAD") + (" with changes" if changed else "")}


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    return info


def add_bfb(path: Path, stage: Path) -> dict[str, Any]:
    """A BFB that can be flashed."""
    bfb = read_bfb(path)
    check_bfb(bfb, None)
    (stage / "bfb").mkdir()
    _link(path, stage / "bfb" / path.name)
    return {"name": path.name, "sha256": bfb.sha256, "versions": dict(bfb.info)}


def add_model(folder: Path, stage: Path) -> dict[str, Any]:
    """A prepared model folder."""
    from blink.model.prepared import PreparedModel  # noqa: PLC0415 - needs more than the standard library

    model = PreparedModel.open(folder)
    model.verify()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        _link(file, stage / "model" / folder.name / file.relative_to(folder))
    return {"name": folder.name, "fingerprint": model.fingerprint.hex()}


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def write_set(stage: Path, about: dict[str, Any], output: Path) -> None:
    """Put everything in ``stage`` into ``output``, behind a manifest; the same input gives the same file."""
    entries = list(_entries(stage))
    manifest = Manifest(about, tuple(entries)).render()
    part = output.with_name(output.name + ".part")
    with tarfile.open(part, "w") as tar:
        tar.addfile(_member(NAME, len(manifest)), io.BytesIO(manifest))
        for entry in entries:
            with (stage / entry.path).open("rb") as file:
                tar.addfile(_member(entry.path, entry.bytes), file)
    check_content(part)
    part.replace(output)


def _entries(stage: Path) -> Iterable[Entry]:
    for path in sorted(p for p in stage.rglob("*") if p.is_file()):
        name = path.relative_to(stage).as_posix()
        if not is_safe_path(name):
            raise BlinkError(f"{name}: not a name that a set may have", "rename the file")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        yield Entry(name, path.stat().st_size, digest)


def _member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def sign(output: Path, key: Path) -> None:
    """Write the detached signature of ``output`` by an SSH key, which may be an agent's public one."""
    signature_of(output).unlink(missing_ok=True)
    run("ssh-keygen", "-q", "-Y", "sign", "-n", NAMESPACE, "-f", key, output)


def _half(text: str) -> tuple[str, list[str]]:
    arch, _, locks = text.partition(":")
    if arch not in ("x86_64", "aarch64") or not locks:
        raise argparse.ArgumentTypeError("write ARCH:LOCK,…, such as aarch64:frontend.txt")
    return arch, locks.split(",")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build/set", metavar="DIR", help="default: build/set")
    parser.add_argument(
        "--half", type=_half, action="append", metavar="ARCH:LOCKS",
        help="one kind of machine; as often as there are kinds. Default: x86_64:backend.txt and aarch64:frontend.txt",
    )  # fmt: skip
    parser.add_argument("--python", default="3.12", metavar="3.N", help="Python of both halves (3.12: Ubuntu 24.04)")
    parser.add_argument("--control-python", default=here, metavar="3.N", help=f"of the operator's machine ({here})")
    parser.add_argument("--control-arch", default=os.uname().machine, metavar="ARCH", help="of the operator's machine")
    parser.add_argument("--model", type=Path, metavar="DIR", help="a prepared model folder to add")
    parser.add_argument("--bfb", type=Path, metavar="FILE", help="a BFB to add")
    parser.add_argument("--key", type=Path, metavar="FILE", help="sign with this SSH key")
    args = parser.parse_args(argv)
    args.half = args.half or [("x86_64", ["backend.txt"]), ("aarch64", ["frontend.txt"])]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    try:
        output = args.output.resolve()
        stage = output / "stage"
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir(parents=True)
        about: dict[str, Any] = pack_checkout(stage)
        about["halves"] = [pack_half(a, locks, args.python, output / "halves", stage) for a, locks in args.half]
        releases = {half_release(stage / half["file"]) for half in about["halves"]}
        if len(releases) > 1:
            raise BlinkError("blink/ or kernels/ changed while the halves were packed", "run make bundle again")
        (about["release"],) = releases
        pack_control(args.control_python, args.control_arch, stage)
        about["control"] = {"python": args.control_python, "arch": args.control_arch}
        if args.bfb:
            about["bfb"] = add_bfb(args.bfb, stage)
        if args.model:
            about["model"] = add_model(args.model, stage)
        (stage / "sbom.cdx.json").write_bytes(bill_of_materials(stage, about))
        target = output / f"blink-{about['release']}.tar"
        write_set(stage, about, target)
        shutil.rmtree(stage)
        if args.key:
            sign(target, args.key)
    except BlinkError as e:
        print(f"bundle: {e}", file=sys.stderr)
        return 1
    print(f"{target}: {target.stat().st_size >> 20} MiB{', signed' if args.key else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
