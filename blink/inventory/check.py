"""``blink inventory check``: every fault of an inventory, one line each."""

from __future__ import annotations

import sys
from pathlib import Path

from blink.errors import BlinkError
from blink.inventory.document import read_inventory
from blink.inventory.hardware import check_hardware
from blink.inventory.pairs import check_pairs
from blink.inventory.rollout import check_rollout
from blink.inventory.secrets import check_secrets
from blink.output import write_json


def run(sources: list[Path], *, json_path: Path | None = None) -> int:
    """Print the faults of the inventory of ``sources``; 0 where it has none, else 1. Raises BlinkError.

    ``json_path`` is told too: {"faults": [line], "appliances": number, "machines": number, "inventory": hash}.
    """
    try:
        # First, since it names a file that is no YAML, which Ansible does not.
        readable = list(check_secrets(sources))
        inventory = read_inventory(sources)
        found = [*check_pairs(inventory), *check_hardware(inventory), *check_rollout(inventory), *readable]
    except BlinkError as e:
        raise BlinkError(f"inventory {' '.join(map(str, sources))}: {e.cause}", e.remedy) from None
    appliances = inventory.appliances()
    machines = len({host for appliance in appliances for host in appliance.members})
    if json_path is not None:
        size = {"appliances": len(appliances), "machines": machines}
        write_json(json_path, {"faults": [str(fault) for fault in found], **size, "inventory": inventory.digest})
    shown = str(json_path) != "-"
    for fault in found if shown else ():
        print(fault)
    if found:
        print(f"blink: {len(found)} faults in inventory {' '.join(map(str, sources))}", file=sys.stderr)
        return 1
    if shown:
        print(f"{len(appliances)} appliances, {machines} machines: no fault; inventory {inventory.digest}")
    return 0
