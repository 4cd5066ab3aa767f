"""The locks: whole, hashed, consistent, and silent about where packages come from."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.ansible.playbook import ROOT

FOLDER = ROOT / "requirements"
LOCKS = sorted(p.name for p in FOLDER.glob("*.txt"))
PIN = re.compile(r"^([a-z0-9-]+)==(\S+)(?: ; (.*?))? \\$", re.MULTILINE)


def pins(lock: str) -> dict[str, str]:
    return {name: version for name, version, _ in PIN.findall((FOLDER / lock).read_text())}


def test_there_is_a_lock_for_each_kind_of_machine() -> None:
    kinds = ["backend", "control", "cross", "dev", "frontend", "gpu", "local", "model"]
    assert [f"{kind}.txt" for kind in kinds] == LOCKS


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_is_pinned_with_hashes(lock: str) -> None:
    text = (FOLDER / lock).read_text()
    requirements = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(requirements) == len(PIN.findall(text)) > 0
    assert text.count("--hash=sha256:") >= len(requirements)


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_names_a_source(lock: str) -> None:
    text = (FOLDER / lock).read_text()
    assert not re.search(r"://|--(extra-)?index|--find-links|--trusted|file:", text)


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock not in ("cross.txt", "model.txt")])
def test_a_package_has_one_version_everywhere(lock: str) -> None:
    only_gpus = {"nvidia-cublas"}  # half a gigabyte that no test needs
    assert {p for p in pins(lock).items() if p[0] not in only_gpus} <= pins("dev.txt").items()


def test_cuda_packages_are_no_newer_than_the_driver() -> None:
    """Code of CUDA 13.1 and later does not load on driver branch 580; bindings before 13.3 have a use after free."""
    found = {n: v for n, v in pins("gpu.txt").items() if n.startswith(("nvidia-", "cuda-bindings"))}
    assert found.pop("cuda-bindings").startswith("13.3.")
    # cuBLAS has numbers of its own: this is the one that PyTorch ships for CUDA 13.0, and it ran on driver 580.
    assert found.pop("nvidia-cublas") == "13.1.0.3"
    assert len(found) == 3
    assert all(version.startswith("13.0.") for version in found.values())


def test_no_user_needs_torch() -> None:
    for lock in LOCKS:
        assert not {"torch", "transformers"} & set(pins(lock))


def test_locks_pin_what_builds_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["dependency-groups"]["build"] == project["build-system"]["requires"]
    assert {"scikit-build-core", "cmake", "ninja"} <= set(pins("local.txt"))
