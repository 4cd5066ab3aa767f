"""The bill of materials of a set, in CycloneDX 1.6: every package of every half, with its hash and license."""

from __future__ import annotations

import email.parser
import hashlib
import io
import json
import re
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def bill_of_materials(stage: Path, about: dict[str, Any]) -> bytes:
    """CycloneDX JSON of the wheels in ``stage``: in its halves, and those of Ansible. Wheels that several halves have
    are one component. The same wheels give the same bytes."""
    components: dict[str, dict[str, Any]] = {}
    for where, name, data in _wheels(stage):
        component = _component(name, data)
        known = components.setdefault(name, component)
        known["properties"].append({"name": "blink:part", "value": where})
    if "bfb" in about:
        bfb = about["bfb"]
        components[bfb["name"]] = {
            "type": "operating-system",
            "bom-ref": bfb["name"],
            "name": bfb["name"],
            "version": bfb["versions"].get("DOCA", "unknown"),
            "hashes": [{"alg": "SHA-256", "content": bfb["sha256"]}],
        }
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": "blink-set", "name": "blink", "version": about["release"],
            }
        },
        "components": [components[name] for name in sorted(components)],
    }  # fmt: skip
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))}"
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def _wheels(stage: Path) -> Iterator[tuple[str, str, bytes]]:
    for path in sorted((stage / "control").glob("*.whl")):
        yield "control", path.name, path.read_bytes()
    for half in sorted((stage / "halves").glob("*.tar")):
        with tarfile.open(half) as tar:
            for member in tar:
                if member.name.endswith(".whl"):
                    stream = tar.extractfile(member)
                    assert stream is not None
                    yield half.stem, Path(member.name).name, stream.read()


def _component(file: str, data: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        (metadata,) = [n for n in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)]
        fields = email.parser.BytesParser().parsebytes(wheel.read(metadata), headersonly=True)
    name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": file,
        "name": name,
        "version": fields["Version"],
        "purl": f"pkg:pypi/{name}@{fields['Version']}?file_name={file}",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}],
        "properties": [],
    }
    if expression := fields["License-Expression"]:
        component["licenses"] = [{"expression": expression}]
    elif name_of_license := _license(fields):
        component["licenses"] = [{"license": {"name": name_of_license}}]
    return component


def _license(fields: email.message.Message) -> str | None:
    """The license where it is no expression: the classifier, or a short text."""
    for classifier in fields.get_all("Classifier", []):
        if classifier.startswith("License ::"):
            return str(classifier.split(" :: ")[-1])
    text = str(fields["License"] or "").strip()
    return text if text and "\n" not in text and len(text) < 100 else None
