"""Whatever a batch loses, and when: the fleet stops, both halves go back as far as they went, no lock is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible.losses import Losses
from tests.ansible.playbook import PLAYBOOKS, ROOT

HALVES = ("gpu", "dpu")
BEFORE = ["release-stage", "configuration-foretell", "drain", "release-activate", "model", "configuration"]
GPU_STEPS = [*BEFORE, "ringd", "backend", "drain-undrain"]
DPU_STEPS = [*BEFORE, "frontend", "smoke", "drain-undrain"]


@pytest.fixture
def fleet(tmp_path: Path) -> Losses:
    return Losses(tmp_path, 2)


def untouched(fleet: Losses, *names: str) -> bool:
    return not any(fleet.steps(f"{name}-{half}") for name in names for half in HALVES)


@pytest.mark.timeout(900)  # seven roll-outs of a pair
def test_a_loss_in_a_later_batch_stops_the_rest_and_the_next_run_goes_on_canary_first(tmp_path: Path) -> None:
    fleet = Losses(tmp_path, 3)
    fleet.fail("smoke", "ap002-dpu")
    assert fleet.run().rc != 0
    assert {half: fleet.result(f"ap001-{half}") for half in HALVES} == dict.fromkeys(HALVES, "done")
    assert (fleet.steps("ap001-gpu"), fleet.steps("ap001-dpu")) == (GPU_STEPS, DPU_STEPS)
    for half in HALVES:
        assert "release-back" in fleet.steps(f"ap002-{half}")
        assert fleet.result(f"ap002-{half}") == "rolled back"
    assert untouched(fleet, "ap003")
    assert fleet.locks() == []

    run = fleet.run().require()
    assert {fleet.result(f"{name}-{half}") for name in fleet.names for half in HALVES} == {"done"}
    assert (fleet.steps("ap003-gpu"), fleet.steps("ap003-dpu")) == (GPU_STEPS, DPU_STEPS)
    assert fleet.locks() == []
    assert run.words.index("msg: ap001") < run.words.index("msg: ap002") < run.words.index("msg: ap003")


@pytest.mark.fleet
@pytest.mark.parametrize(
    ("step", "half", "goes_back"),
    [
        ("release-stage", "gpu", False),
        ("drain", "dpu", False),
        ("release-activate", "dpu", True),
        ("smoke", "dpu", True),
    ],
)
def test_a_failure_sends_both_halves_back_and_stops_the_fleet(
    step: str, half: str, goes_back: bool, fleet: Losses
) -> None:
    fleet.fail(step, f"ap001-{half}")
    run = fleet.run()
    assert run.rc != 0
    for part in HALVES:
        steps = fleet.steps(f"ap001-{part}")
        assert ("release-back" in steps) == goes_back, part
        assert "drain" not in steps or steps[-1] == "drain-undrain", "what was asked to drain takes requests again"
        assert fleet.result(f"ap001-{part}") == "rolled back"
    assert untouched(fleet, "ap002")
    assert fleet.locks() == []
    assert "ap001 was not upgraded, and serves as before; the fleet stops here" in run.words


@pytest.mark.fleet
@pytest.mark.parametrize("half", HALVES)
def test_a_machine_that_is_silent_from_the_start_stops_the_fleet(half: str, fleet: Losses) -> None:
    fleet.kill(f"ap001-{half}")
    run = fleet.run()
    assert run.rc != 0
    assert untouched(fleet, "ap001", "ap002")
    assert fleet.locks() == []


@pytest.mark.fleet
@pytest.mark.parametrize(
    ("step", "half", "goes_back"),
    [
        ("release-stage", "dpu", False),
        ("drain", "dpu", False),
        ("release-activate", "gpu", True),
        ("frontend", "dpu", True),
    ],
)
def test_a_machine_that_falls_silent_takes_its_other_half_back(
    step: str, half: str, goes_back: bool, fleet: Losses
) -> None:
    fleet.die(step, f"ap001-{half}")
    run = fleet.run()
    assert run.rc != 0
    left = {"gpu": "dpu", "dpu": "gpu"}[half]
    assert ("release-back" in fleet.steps(f"ap001-{left}")) == goes_back
    assert fleet.result(f"ap001-{left}") in ("rolled back", "not rolled back")
    assert untouched(fleet, "ap002")
    assert fleet.locks() == [f"ap001-{half}"], "the silent half keeps its lock until it boots"


def test_every_step_that_changes_what_serves_is_remembered_before_it_and_followed_by_a_look_at_the_other_half() -> None:
    """The order of an upgrade, by which the plays above stand for the steps that they do not break."""
    tasks = yaml.safe_load((ROOT / "playbooks/tasks/upgrade_drained.yml").read_text())
    assert [_step(task) for task in tasks] == [
        "reached drained", "drain", "look", "reached activated", "release activate", "serve", "look", "smoke",
        "drain undrain", "reached undrained", "look",
    ]  # fmt: skip


def _step(task: dict[str, Any]) -> str:
    if role := task.get("ansible.builtin.include_role"):
        step = " ".join(part for part in (role["name"], role.get("tasks_from")) if part)
        return "look" if step == "change present" else step
    if facts := task.get("ansible.builtin.set_fact"):
        return f"reached {facts['upgrade'].split(chr(39))[3]}"
    return str(task["ansible.builtin.import_tasks"]).removesuffix(".yml")


@pytest.mark.fleet
def test_a_rollback_that_fails_stops_the_fleet_and_says_so(fleet: Losses) -> None:
    fleet.fail("smoke", "ap001-dpu")
    run = fleet.run("playbooks/rollback.yml")
    assert run.rc != 0
    assert "ap001 could not be rolled back, and stays drained" in run.words
    assert fleet.steps("ap001-dpu")[-1] == "smoke", "it is not undrained"
    assert untouched(fleet, "ap002")
    assert fleet.locks() == []


def test_a_wrong_inventory_stops_before_the_first_task(fleet: Losses) -> None:
    file = fleet.inventory / "hosts.yml"
    file.write_text(file.read_text().replace("blink_topology: same_card", "blink_topology: star", 1))
    run = fleet.run("site.yml")
    assert run.rc != 0
    assert "ap001: blink_topology 'star' is unknown: choose one of same_card, remote_dpu" in run.words
    assert run.output.count("PLAY [") == 1
    assert untouched(fleet, *fleet.names)


@pytest.mark.parametrize("playbook", sorted({*PLAYBOOKS} - {"playbooks/inventory.yml", "playbooks/develop.yml"}))
def test_every_playbook_checks_the_inventory_first(playbook: str) -> None:
    path = ROOT / playbook
    while path.name != "inventory.yml":  # site.yml does it by the first playbook that it imports
        first = yaml.safe_load(path.read_text())[0]
        assert "ansible.builtin.import_playbook" in first, path
        path = path.parent / first["ansible.builtin.import_playbook"]
