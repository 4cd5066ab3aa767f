"""What the profile `single` demands of a machine's GPU. A script that answers alike stands in for nvidia-smi."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ansible.playbook import Run, playbook
from tests.appliance import free_port

UUID = "GPU-5a7c0d9e-1b2f-4e6d-8c3a-0f9b8d7e6c5a"
H200 = f"0, {UUID}, NVIDIA H200, 580.159.04, 143771, 4, Default, Enabled, Disabled"


@pytest.fixture
def preflight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the preflight on a machine whose nvidia-smi prints a text, with variables."""

    def run(answer: str | None, rc: int = 0, **variables: Any) -> Run:
        if answer is not None:
            script = tmp_path / "bin" / "nvidia-smi"
            script.parent.mkdir()
            script.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\nexit {rc}\n")
            script.chmod(0o755)
            monkeypatch.setenv("PATH", f"{script.parent}:/usr/local/bin:/usr/bin:/bin")
        base = {
            "blink_state_dir": str(tmp_path / "s"),
            "blink_run_dir": "/tmp/blink-run",
            "blink_http_port": free_port(),
        }
        return playbook("playbooks/preflight.yml", base | variables, "--inventory", "inventory/single")

    return run


def test_a_gpu_that_serves(preflight: Any) -> None:
    preflight(H200, blink_settings={"engine": {"device": UUID}}).require()


@pytest.mark.parametrize(
    ("answer", "rc", "message"),
    [
        (None, 0, "No GPU can be used (nvidia-smi: No such file or directory). Engine native needs"),
        ("NVIDIA-SMI has failed because it couldn't communicate", 9, "couldn't communicate). Engine native needs"),
        (H200.replace("580.159.04", "570.86.10"), 0, "The driver is 570.86.10. CUDA 13.0"),
        (H200.removesuffix("Disabled") + "Enabled", 0, "GPU 0 is divided (MIG)"),
        (H200.replace("Default", "Prohibited"), 0, "The compute mode of GPU 0 is Prohibited"),
        (H200.replace(", 4,", ", 140000,"), 0, "GPU 0 has 3771 MiB free of 143771, 8192 are needed"),
    ],
    ids=["no driver", "no device", "old driver", "mig", "prohibited", "full"],
)
def test_a_gpu_that_does_not(preflight: Any, answer: str | None, rc: int, message: str) -> None:
    run = preflight(answer, rc)
    assert run.rc != 0
    assert message in run.words


def test_a_gpu_that_is_not_there(preflight: Any) -> None:
    run = preflight(H200, blink_settings={"engine": {"device": 3}})
    assert run.rc != 0
    assert f"There is no GPU 3; this machine has 0 NVIDIA H200 {UUID}; set engine.device" in run.words


def test_a_profile_without_a_gpu_asks_for_none(preflight: Any) -> None:
    preflight("", 9, blink_engine="reference").require()
