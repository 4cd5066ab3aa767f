"""Five hundred appliances: what a roll-out would do, in which order, without connecting to any."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.ansible.playbook import ansible
from tests.inventory.fleet import fleet, name, write

COUNT, CANARIES = 500, 3

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1800)]


def test_five_hundred_appliances_are_planned_in_whole_pairs_canaries_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inventory = fleet(COUNT, canaries=CANARIES)
    # A connection to any of them would fail.
    inventory["all"]["vars"] = {"ansible_ssh_executable": "/bin/false", "blink_log_dir": "/var/log/blink"}
    source = write(inventory, tmp_path / "inventory")
    start = time.perf_counter()
    run = ansible(
        "ansible-playbook", "--inventory", str(source), "playbooks/upgrade.yml",
        "--extra-vars", '{"rollout_plan": true, "rollout_batches": [1, 10, 50]}', timeout_s=1500,
    ).require()  # fmt: skip
    seconds = time.perf_counter() - start
    batches = [re.findall(r"ap\d+", batch) for batch in re.findall(r"msg: (ap\d+(?:\s+ap\d+)*)", run.output)]
    sizes = [len(batch) for batch in batches]
    canaries = [name(n) for n in range(COUNT - CANARIES + 1, COUNT + 1)]
    assert batches[0] == canaries
    assert sizes[:3] == [CANARIES, 1, 10]
    assert set(sizes[3:-1]) == {50}
    planned = [appliance for batch in batches for appliance in batch]
    assert len(planned) == len(set(planned)) == COUNT
    # Had a pair been split, its halves would be in two batches, and the gate would have refused.
    assert run.count("failed") == run.count("unreachable") == run.count("changed") == 0
    with capsys.disabled():
        print(f"\n{COUNT} appliances, {len(batches)} batches: checked and planned in {seconds:.1f} s")
