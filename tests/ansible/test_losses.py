"""Whatever a batch loses, and when: the fleet stops, both halves go back as far as they went, no lock is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ansible.losses import Losses

BEFORE = ["release-stage", "configuration-foretell", "drain", "release-activate", "model", "configuration"]
GPU_STEPS = [*BEFORE, "ringd", "backend", "drain-undrain"]
DPU_STEPS = [*BEFORE, "frontend", "smoke", "drain-undrain"]


@pytest.fixture
def fleet(tmp_path: Path) -> Losses:
    return Losses(tmp_path, 2)


def untouched(fleet: Losses, *names: str) -> bool:
    return not any(fleet.steps(f"{name}-{half}") for name in names for half in ("gpu", "dpu"))


def test_without_a_loss_every_appliance_is_done_canary_first(fleet: Losses) -> None:
    run = fleet.run().require()
    for name in fleet.names:
        assert (fleet.steps(f"{name}-gpu"), fleet.steps(f"{name}-dpu")) == (GPU_STEPS, DPU_STEPS)
        assert {fleet.result(f"{name}-{half}") for half in ("gpu", "dpu")} == {"done"}
    assert fleet.locks() == []
    assert run.words.index("msg: ap001") < run.words.index("msg: ap002")


@pytest.mark.parametrize(
    ("step", "half", "goes_back"),
    [
        pytest.param("release-stage", "gpu", False, marks=pytest.mark.fleet),
        pytest.param("drain", "dpu", False, marks=pytest.mark.fleet),
        pytest.param("release-activate", "dpu", True, marks=pytest.mark.fleet),
        ("smoke", "dpu", True),
    ],
)
def test_a_failure_sends_both_halves_back_and_stops_the_fleet(
    step: str, half: str, goes_back: bool, fleet: Losses
) -> None:
    fleet.fail(step, f"ap001-{half}")
    run = fleet.run()
    assert run.rc != 0
    for part in ("gpu", "dpu"):
        assert ("release-back" in fleet.steps(f"ap001-{part}")) == goes_back, part
        assert fleet.result(f"ap001-{part}") == "rolled back"
    assert untouched(fleet, "ap002")
    assert fleet.locks() == []
    assert "ap001 was not upgraded, and serves as before; the fleet stops here" in run.words


@pytest.mark.fleet
@pytest.mark.parametrize("half", ["gpu", "dpu"])
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


@pytest.mark.fleet
def test_a_loss_in_a_later_batch_stops_the_rest_and_the_next_run_goes_on(tmp_path: Path) -> None:
    fleet = Losses(tmp_path, 3)
    fleet.fail("smoke", "ap002-dpu")
    assert fleet.run().rc != 0
    assert fleet.result("ap001-gpu") == "done"
    assert fleet.result("ap002-gpu") == "rolled back"
    assert untouched(fleet, "ap003")
    fleet.run().require()
    assert [fleet.result(f"{name}-dpu") for name in fleet.names] == ["done"] * 3


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
    for playbook in ("playbooks/upgrade.yml", "site.yml", "playbooks/drain.yml"):
        run = fleet.run(playbook)
        assert run.rc != 0
        assert "ap001: blink_topology 'star' is unknown: choose one of same_card, remote_dpu" in run.words
        assert run.output.count("PLAY [") == 1
    assert untouched(fleet, *fleet.names)
