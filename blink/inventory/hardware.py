"""What an appliance says of its card, its GPU and the ring's network: complete, well formed, and used once."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

from blink.inventory.document import Appliance, Inventory
from blink.inventory.fault import Fault

TOPOLOGIES = ("same_card", "remote_dpu")
GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
BDF = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
SERIAL = re.compile(r"[A-Za-z0-9]{6,}")
FIELDS = (
    ("serial", SERIAL, "as `mlxvpd -d BDF` prints it"),
    ("bdf", BDF, "such as 0000:0d:00.0, as lspci prints it on the machine that holds the card"),
)


def check_hardware(inventory: Inventory) -> Iterator[Fault]:
    """Faults of pair variables. An appliance without blink_topology has no card, as the profiles without hardware."""
    seen: dict[tuple[str, str], str] = {}
    for appliance in inventory.appliances():
        topology = appliance.variables.get("blink_topology")
        if topology is not None:
            if topology not in TOPOLOGIES:
                yield Fault(
                    appliance.name, f"blink_topology {topology!r} is unknown", f"choose one of {', '.join(TOPOLOGIES)}"
                )
            yield from _check_card(inventory, appliance, topology)
            yield from _check_gpu(appliance)
            yield from _check_net(appliance)
        for what, key, shown in _identities(inventory, appliance):
            owner = seen.setdefault((what, key), appliance.name)
            if owner != appliance.name:
                yield Fault(
                    appliance.name, f"{what} {shown} is {owner}'s too", "one of them is wrong: look at the machines"
                )


def _check_card(inventory: Inventory, appliance: Appliance, topology: str) -> Iterator[Fault]:
    card = appliance.variables.get("blink_card")
    if not isinstance(card, dict):
        yield Fault(
            appliance.name,
            "blink_card is missing",
            "set it: {serial: …, bdf: …, rshim_via: …} (docs/fleet.md)",
        )
        return
    for name, pattern, example in FIELDS:
        if not pattern.fullmatch(str(card.get(name, ""))):
            yield Fault(appliance.name, f"blink_card.{name} is {card.get(name)!r}", f"give it {example}")
    via = card.get("rshim_via")
    if topology == "same_card" and via not in appliance.gpu_hosts:
        yield Fault(
            appliance.name,
            f"blink_card.rshim_via is {via!r}, and with same_card the GPU host holds the card",
            f"set it to {', '.join(appliance.gpu_hosts) or 'the GPU host'}, or blink_topology to remote_dpu",
        )
    if topology == "remote_dpu" and via not in inventory.hosts("dpu_carriers"):
        yield Fault(
            appliance.name,
            f"blink_card.rshim_via is {via!r}, which is not in dpu_carriers",
            "with remote_dpu name the server that holds the card, and list it in dpu_carriers",
        )


def _check_gpu(appliance: Appliance) -> Iterator[Fault]:
    uuid = appliance.variables.get("blink_gpu_uuid")
    if not GPU_UUID.fullmatch(str(uuid)):
        yield Fault(appliance.name, f"blink_gpu_uuid is {uuid!r}", "give it as `nvidia-smi -L` prints it")


def _check_net(appliance: Appliance) -> Iterator[Fault]:
    net = appliance.variables.get("blink_ring_net")
    try:
        host, dpu = (ipaddress.ip_interface(net[half]) for half in ("host", "dpu"))  # type: ignore[index]
    except (TypeError, KeyError, ValueError):
        yield Fault(
            appliance.name, f"blink_ring_net is {net!r}", "give both ends: {host: 10.9.1.1/30, dpu: 10.9.1.2/30}"
        )
        return
    if host.network != dpu.network or host.ip == dpu.ip:
        yield Fault(
            appliance.name,
            f"blink_ring_net: {host} and {dpu} are not two addresses of one network",
            "give both ends of one link",
        )


def _identities(inventory: Inventory, appliance: Appliance) -> Iterator[tuple[str, str, str]]:
    """What no other appliance may have: kind, key, and how it is shown."""
    variables = appliance.variables
    card: Any = variables.get("blink_card")
    if isinstance(card, dict):
        via = card.get("rshim_via")
        if card.get("serial"):
            yield "blink_card.serial", str(card["serial"]).upper(), card["serial"]
        if card.get("bdf"):
            yield "blink_card.bdf", f"{via} {card['bdf']}".lower(), f"{card['bdf']} of {via}"
    if variables.get("blink_gpu_uuid"):
        yield "blink_gpu_uuid", str(variables["blink_gpu_uuid"]).lower(), variables["blink_gpu_uuid"]
    net: Any = variables.get("blink_ring_net")
    addresses = {str(net.get(half)).split("/")[0] for half in ("host", "dpu")} if isinstance(net, dict) else set()
    addresses |= {
        str(address)
        for host in appliance.members
        if (address := inventory.variable(host, "blink_ring_address")) and "{{" not in str(address)
    }
    for address in sorted(addresses - {"None"}):
        yield "ring address", address, address
    for host in appliance.members:
        address = inventory.variable(host, "ansible_host")
        if address and inventory.variable(host, "ansible_connection") != "local":
            port = inventory.variable(host, "ansible_port") or 22
            yield "ansible_host", f"{address}:{port}", f"{address} port {port}"
