"""Secrets that lie in an inventory's files as plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from blink.errors import BlinkError
from blink.inventory.fault import Fault

SECRET = re.compile(
    r"(password|password_hash|passwd|become_pass|ssh_pass|secret|token|ring_key|ring_key_next|api_keys?|host_key|"
    r"private_key|gateway_certificate)$",
    re.IGNORECASE,
)
ASSIGNMENT = re.compile(r"\b(\w+)\s*=\s*(\S+)")
VAULT_HEADER = b"$ANSIBLE_VAULT;"
LARGEST = 4 << 20
REMEDY = "encrypt it (`ansible-vault encrypt_string`), or refer to a variable of a vault"


class _Hidden:
    """A value that is encrypted."""


# YAML as inventories have it: !vault and !unsafe are known.
_Loader: Any = type("_Loader", (yaml.SafeLoader,), {})
_Loader.add_constructor("!vault", lambda *_: _Hidden())
_Loader.add_constructor("!vault-encrypted", lambda *_: _Hidden())
_Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


def check_secrets(sources: list[Path]) -> Iterator[Fault]:
    """A fault for each secret that is readable. Raises BlinkError for a file that is missing or no YAML."""
    for file in _files(sources):
        data = file.read_bytes()
        if data.startswith(VAULT_HEADER):
            continue
        is_yaml = file.suffix in (".yml", ".yaml", ".json", "")
        names = _in_yaml(file, data) if is_yaml else _in_assignments(data)
        for name in names:
            yield Fault(str(file), f"{name} is plain text", REMEDY)


def _files(sources: list[Path]) -> list[Path]:
    """The files that Ansible reads for ``sources``: them, and group_vars and host_vars beside them."""
    found: set[Path] = set()
    for source in sources:
        if not source.exists():
            raise BlinkError(f"{source} does not exist", "name an inventory with --inventory")
        roots = [source] if source.is_dir() else [source.parent / "group_vars", source.parent / "host_vars"]
        if source.is_file():
            found.add(source)
        for root in roots:
            found |= {f for f in root.rglob("*") if f.is_file() and not f.name.startswith(".")}
    # A program prints an inventory or a password; it is no place for either.
    return sorted(f for f in found if f.stat().st_size <= LARGEST and not f.stat().st_mode & 0o111)


def _in_yaml(file: Path, data: bytes) -> list[str]:
    try:
        documents = list(yaml.load_all(data, Loader=_Loader))
    except yaml.YAMLError as e:
        if file.suffix == "":
            return _in_assignments(data)
        raise BlinkError(f"{file} is not YAML ({str(e).splitlines()[0]})", "correct it") from None
    return [name for document in documents for name in _readable(document, "")]


def _in_assignments(data: bytes) -> list[str]:
    text = data.decode(errors="replace")
    pairs = ASSIGNMENT.findall("\n".join(line.split("#")[0] for line in text.splitlines()))
    return [name for name, value in pairs if SECRET.search(name) and _is_plain(value.strip("\"'"))]


def _readable(value: Any, path: str) -> Iterator[str]:
    """Paths of the secrets in ``value`` that are plain text."""
    if isinstance(value, dict):
        for key, inner in value.items():
            where = f"{path}.{key}" if path else str(key)
            if SECRET.search(str(key)) and _is_plain(inner):
                yield where.rpartition("vars.")[2]
            else:
                yield from _readable(inner, where)
    elif isinstance(value, list):
        for inner in value:
            yield from _readable(inner, path)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_plain(v) for v in value)
    if isinstance(value, dict):
        return any(_is_plain(v) for v in value.values())
    # A template refers to a vault or looks it up; nothing is no secret.
    return isinstance(value, str | int) and not isinstance(value, bool) and value != "" and "{{" not in str(value)
