"""A right inventory of any number of appliances, for tests to break."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]


def name(number: int) -> str:
    """The name of appliance ``number``, from 1."""
    return f"ap{number:03d}"


def appliance(number: int) -> Json:
    """The group of appliance ``number``, whose card is in its GPU host."""
    ap = name(number)
    net = f"10.9.{number >> 6}.{(number & 63) * 4}"
    first = int(net.rsplit(".", 1)[1])
    return {
        "vars": {
            "blink_appliance": ap,
            "blink_topology": "same_card",
            "blink_gpu_uuid": f"GPU-{number:08x}-0000-4000-8000-{number:012x}",
            "blink_card": {
                "serial": f"MT2334X{number:05d}",
                "bdf": "0000:0d:00.0",
                "rshim_via": f"{ap}-gpu",
            },
            "blink_ring_net": {
                "host": f"{net.rsplit('.', 1)[0]}.{first + 1}/30",
                "dpu": f"{net.rsplit('.', 1)[0]}.{first + 2}/30",
            },
        },
        "hosts": {f"{ap}-gpu": {}, f"{ap}-dpu": {}},
    }


def fleet(count: int, *, canaries: int = 1) -> Json:
    """An inventory of ``count`` appliances; the last ``canaries`` of them are canaries."""
    numbers = range(1, count + 1)
    return {
        "all": {
            "children": {
                "appliances": {"children": {name(n): appliance(n) for n in numbers}},
                "gpu_hosts": {"hosts": {f"{name(n)}-gpu": {} for n in numbers}},
                "dpus": {"hosts": {f"{name(n)}-dpu": {} for n in numbers}},
                "canary": {"children": {name(n): {} for n in list(numbers)[count - canaries :]}},
                "dpu_carriers": {"hosts": {}},
            }
        }
    }


def write(inventory: Json, folder: Path) -> Path:
    """Write ``inventory`` as ``folder``/hosts.yml; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory, sort_keys=False))
    return folder


def listed(inventory: Json) -> Json:
    """The document that ``ansible-inventory --list`` prints of ``inventory``, in no time; a test compares the two."""
    groups: Json = {}
    hostvars: Json = {}

    def walk(name: str, group: Json, inherited: Json) -> None:
        entry = groups.setdefault(name, {})
        variables = inherited | group.get("vars", {})
        for host, own in group.get("hosts", {}).items():
            entry.setdefault("hosts", []).append(host)
            hostvars.setdefault(host, {}).update(variables | own)
        for child, below in group.get("children", {}).items():
            entry.setdefault("children", []).append(child)
            walk(child, below, variables)

    walk("all", inventory["all"], {})
    return groups | {"_meta": {"hostvars": hostvars}}
