"""A set is taken only when every file is as it was packed, and by whom it should be."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from blink.bundle.manifest import NAME, Entry, Manifest, is_safe_path
from blink.bundle.verify import check_content, check_signature, unpack
from blink.cli import main
from blink.errors import BlinkError
from scripts.pack_set import sign, write_set
from tests.depth import examples

FILES = {"checkout.tar": b"sources", "control/ansible.whl": b"w" * 70_000, "halves/backend.txt-3.12-x86_64.tar.id": b""}
ABOUT = {"version": "v1", "release": "0123456789abcdef", "halves": [{"file": "halves/x.tar"}]}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    stage = tmp_path / "stage"
    for name, data in FILES.items():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_bytes(data)
    path = tmp_path / "blink-0123456789abcdef.tar"
    write_set(stage, ABOUT, path)
    return path


def key(folder: Path, name: str) -> Path:
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=60)
    return path


def signers(folder: Path, *keys: tuple[str, Path]) -> Path:
    path = folder / "signers"
    path.write_text("".join(f"{who} {k.with_suffix('.pub').read_text()}" for who, k in keys))
    return path


def rewrite(bundle: Path, change: object) -> None:
    """Write the tar again with ``change(name, data)`` for each file: None leaves it out, a list is several members."""
    with tarfile.open(bundle) as tar:
        members = [(m.name, (tar.extractfile(m) or io.BytesIO()).read()) for m in tar]
    with tarfile.open(bundle, "w") as tar:
        for name, data in members:
            for info, content in change(name, data):  # type: ignore[operator]
                tar.addfile(info, io.BytesIO(content))


def member(name: str, data: bytes, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def test_a_set_is_read_back_as_it_was_packed(bundle: Path, tmp_path: Path) -> None:
    manifest = check_content(bundle)
    assert manifest.about == ABOUT
    assert {f.path: f.bytes for f in manifest.files} == {n: len(d) for n, d in FILES.items()}
    unpack(bundle, tmp_path / "out")
    found = {p.relative_to(tmp_path / "out").as_posix(): p for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert {n: p.read_bytes() for n, p in found.items() if n != NAME} == FILES
    assert Manifest.parse(found[NAME].read_bytes()) == manifest


def test_the_same_files_make_the_same_set(bundle: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.tar"
    write_set(tmp_path / "stage", ABOUT, again)
    assert again.read_bytes() == bundle.read_bytes()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda n, d: [member(n, d[:-1] + b"x" if n.endswith("whl") else d)], "control/ansible.whl is damaged"),
        (lambda n, d: [member(n, d + b"x" if n.endswith("whl") else d)], "has 70001 bytes, and 70000 are listed"),
        (lambda n, d: [] if n.endswith("whl") else [member(n, d)], "control/ansible.whl is missing"),
        (lambda n, d: [member(n, d), member("extra", b"")], "extra is not in its manifest"),
        (lambda n, d: [member(n, d), member(n, d)], "is not in its manifest"),
        (lambda n, d: [member(n, d), member("../../etc/cron.d/x", b"")], "is not in its manifest"),
        (
            lambda n, d: [
                member(n, b"", type=tarfile.SYMTYPE, linkname="/etc/passwd") if n.endswith("whl") else member(n, d)
            ],
            "control/ansible.whl is not in its manifest",
        ),
        (lambda n, d: [] if n == NAME else [member(n, d)], "does not begin with MANIFEST.json"),
    ],
)
def test_a_changed_set_is_refused(bundle: Path, tmp_path: Path, change: object, complaint: str) -> None:
    rewrite(bundle, change)
    with pytest.raises(BlinkError, match=complaint):
        check_content(bundle)
    with pytest.raises(BlinkError, match=complaint):
        unpack(bundle, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.part").exists()


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "a/../x", "a//b", "a/", ".", "..", "a/.", NAME, "a\\b", "a\nb", "-x", "a" * 1025],
)
def test_a_manifest_cannot_name_a_place_outside(path: str) -> None:
    assert path == NAME or not is_safe_path(path)
    with pytest.raises(BlinkError):
        Manifest.parse(Manifest({}, (Entry(path, 0, "0" * 64),)).render())


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"format": 1, "about": {}, "files": 5},
        {"format": 1, "about": [], "files": []},
        {"format": 1, "about": {}, "files": [{"path": "a", "bytes": -1, "sha256": "0" * 64}]},
        {"format": 1, "about": {}, "files": [{"path": "a", "bytes": 1, "sha256": "0"}]},
        {"format": 2, "about": {}, "files": []},
    ],
)
def test_what_is_no_manifest_is_refused(document: object) -> None:
    with pytest.raises(BlinkError, match=r"MANIFEST\.json"):
        Manifest.parse(json.dumps(document).encode())


def test_a_folder_that_exists_is_left_alone(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(BlinkError, match="exists"):
        unpack(bundle, tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(BlinkError, match="name a folder that can be made"):
        unpack(bundle, tmp_path / "file/out")


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_damage_is_found_or_is_of_no_file(bundle: Path, at: float, bit: int, cut: bool) -> None:
    """A tar has bytes that nobody reads: padding, owner, date. Whatever passes has every file as it was."""
    whole = bundle.read_bytes()
    place = int(at * len(whole))
    damaged = bytearray(whole)
    damaged[place] ^= 1 << bit
    path = bundle.with_name("damaged.tar")
    path.write_bytes(whole[:place] if cut else bytes(damaged))
    read: dict[str, io.BytesIO] = {}

    class Kept(io.BytesIO):
        def close(self) -> None:
            pass

    def keep(entry: Entry) -> io.BytesIO:
        return read.setdefault(entry.path, Kept())

    try:
        check_content(path, keep)
    except BlinkError:
        return
    assert {n: d.getvalue() for n, d in read.items()} == FILES


def test_a_signature_of_a_known_key_is_taken(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = key(tmp_path, "ours")
    sign(bundle, ours)
    known = signers(tmp_path, ("release@example.com", ours))
    assert check_signature(bundle, known) == "release@example.com"
    assert main(["bundle", "verify", str(bundle), "--signers", str(known)]) == 0
    assert "signed by release@example.com" in capsys.readouterr().out
    assert main(["bundle", "unpack", str(bundle), str(tmp_path / "out"), "--signers", str(known), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["signer"] == "release@example.com"


def test_any_other_signature_is_refused(bundle: Path, tmp_path: Path) -> None:
    ours, theirs = key(tmp_path, "ours"), key(tmp_path, "theirs")
    known = signers(tmp_path, ("release@example.com", ours))
    with pytest.raises(BlinkError, match=r"\.sig: there is no such file"):
        check_signature(bundle, known)
    sign(bundle, theirs)
    with pytest.raises(BlinkError, match="signed by nobody"):
        check_signature(bundle, known)
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", str(ours), str(bundle)],
        check=True, timeout=60, input=b"y\n",
    )  # fmt: skip
    with pytest.raises(BlinkError, match="does not fit"):
        check_signature(bundle, known)
    sign(bundle, ours)
    with bundle.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\1")
    with pytest.raises(BlinkError, match="does not fit"):
        check_signature(bundle, known)


def test_an_unsigned_set_says_so(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "verify", str(bundle)]) == 0
    assert "the signature was not checked" in capsys.readouterr().out


@pytest.mark.parametrize("data", [None, b"", b"\0" * 2048, b"not a tar at all" * 100])
def test_what_is_no_set_is_refused(tmp_path: Path, data: bytes | None, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.tar"
    if data is not None:
        path.write_bytes(data)
    assert main(["bundle", "verify", str(path)]) == 1
    assert "wrong.tar: " in capsys.readouterr().err


def test_it_runs_with_nothing_but_the_standard_library(bundle: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c",
         f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); sys.argv[0] = 'blink.bundle';"
         "import runpy; runpy.run_module('blink.bundle', run_name='__main__')",
         "verify", str(bundle)],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
