"""A flashable set: everything that one card is flashed with, in one folder."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import subprocess
import tomllib
from pathlib import Path

from blink.bfb.command import check
from blink.bfb.read import Bfb, read_bfb
from blink.errors import BlinkError
from images.bluefield.config import render, template_sha256, write_private
from images.bluefield.embed import Origin
from images.bluefield.settings import Settings

MANIFEST = Path(__file__).with_name("manifest.toml")


def pinned() -> dict[str, str]:
    """The table ``[bfb]`` of manifest.toml: name, doca, sha256."""
    return {k: str(v) for k, v in tomllib.loads(MANIFEST.read_text())["bfb"].items()}


def pinned_sha256(given: str | None) -> str:
    """The SHA-256 that the vendor's BFB must have: ``given``, or manifest.toml's. Raises BlinkError where none is."""
    sha256 = given or pinned()["sha256"]
    if not sha256:
        raise BlinkError(
            "the BFB's SHA-256 is not pinned",
            "take it from NVIDIA's download page and give it with --sha256, or in images/bluefield/manifest.toml",
        )
    return sha256


def check_platform(bfb: Bfb, name: str) -> None:
    """Raise BlinkError where the vendor's file called ``name`` is of another platform than manifest.toml's."""
    pin = pinned()
    if not fnmatch.fnmatchcase(name, pin["name"]):
        raise BlinkError(
            f"{bfb.path}: the name {name} is not like {pin['name']}",
            "take the BF-Bundle of that version with 4-KiB pages, or give --any-platform",
        )
    named = dict(bfb.info).get("DOCA")
    if named is not None and not (named == pin["doca"] or named.startswith((f"{pin['doca']}-", f"{pin['doca']}."))):
        raise BlinkError(
            f"{bfb.path}: it has DOCA {named}, and {pin['doca']} is wanted",
            "take the BF-Bundle of that version, or give --any-platform",
        )


def host_public_key(private: Path) -> str:
    """The public half of an SSH key: type and key, without comment."""
    made = subprocess.run(
        ["ssh-keygen", "-y", "-P", "", "-f", str(private)], capture_output=True, text=True, check=False, timeout=60
    )
    if made.returncode:
        raise BlinkError("settings: host_key: ssh-keygen cannot read it", "give an OpenSSH key without a passphrase")
    return " ".join(made.stdout.split()[:2])


def build(settings: Settings, path: Path, sha256: str | None, output: Path, *, any_platform: bool) -> None:
    """Write bf.cfg (mode 0600), known_hosts and manifest.json into ``output``, for the BFB at ``path``.

    The BFB stays where it is: manifest.json has its name, size and SHA-256. Raises BlinkError where the BFB must not be
    flashed or a setting is wrong; then nothing is written.
    """
    origin = Origin.read(path) or Origin(pinned_sha256(sha256), None, path.name, pinned_sha256(sha256))
    if sha256 is not None and sha256.lower() != origin.vendor_sha256:
        raise BlinkError(f"{path}: made from a BFB with SHA-256 {origin.vendor_sha256}", "embed the bundle anew")
    bfb = read_bfb(path)
    check(bfb, origin.sha256)
    if not any_platform:
        check_platform(bfb, origin.vendor_name)
    text = render(settings)
    output.mkdir(mode=0o700, parents=True, exist_ok=True)
    output.chmod(0o700)
    key = output / "host_key"
    write_private(key, settings.host_key.rstrip("\n") + "\n")
    try:
        public = host_public_key(key)
    finally:
        key.unlink()
    names = [settings.hostname]
    if settings.management.address:
        names.append(settings.management.address.split("/")[0])
    write_private(output / "bf.cfg", text)
    (output / "known_hosts").write_text(f"{','.join(names)} {public}\n")
    files = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in (output / "bf.cfg", output / "known_hosts")}
    document = {
        "appliance": settings.appliance,
        "hostname": settings.hostname,
        "card_serial": settings.card_serial,
        "bfb": {"name": path.name, "bytes": bfb.size, "sha256": bfb.sha256, "versions": dict(bfb.info)},
        "vendor_bfb": {"name": origin.vendor_name, "sha256": origin.vendor_sha256},
        "release": origin.release,
        "template_sha256": template_sha256(),
        "files": files,
    }
    (output / "manifest.json").write_text(json.dumps(document, indent=2) + "\n")
