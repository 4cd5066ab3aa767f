"""Which transport a configuration means, who this machine is for ringd, and the binding to pyverbs."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from blink.config import ApplianceConfig, RdmaConfig
from blink.errors import BlinkError
from blink.ring.shm import ShmTransport
from blink.ring.verbs import binding
from blink.ring.verbs.binding import Pyverbs
from blink.ring_access import HOLDER, holder_id, open_transport


def config(root: Path, **rdma: Any) -> ApplianceConfig:
    """A configuration; with ``rdma``, of transport verbs."""
    sections: dict[str, Any] = {"rdma": rdma, "ring": {"transport": "verbs"}} if rdma else {}
    return ApplianceConfig(
        instance={"run_dir": root, "ring_dir": root}, model={"path": root, "served_name": "toy"}, **sections
    )


def test_shm_is_the_default(tmp_path: Path) -> None:
    assert isinstance(open_transport(config(tmp_path), 1), ShmTransport)


def test_verbs_needs_its_section(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"rdma: ring\.transport verbs needs this section"):
        ApplianceConfig(
            instance={"run_dir": tmp_path, "ring_dir": tmp_path}, model={"path": tmp_path, "served_name": "toy"},
            ring={"transport": "verbs"},
        )  # fmt: skip


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "host.example"])
def test_ringd_has_one_address(address: str) -> None:
    with pytest.raises(ValidationError, match="ringd_address"):
        RdmaConfig(ringd_address=address, key_file="key")


def test_one_holder_per_folder_however_many_workers_start(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        holders = set(pool.map(lambda _: holder_id(tmp_path / "run"), range(16)))
    assert len(holders) == 1
    assert holder_id(tmp_path / "other") not in holders
    assert list((tmp_path / "run").iterdir()) == [tmp_path / "run" / HOLDER]


def test_a_damaged_holder_is_named(tmp_path: Path) -> None:
    (tmp_path / HOLDER).write_bytes(b"short")
    with pytest.raises(BlinkError, match=f"{HOLDER} is damaged: remove it"):
        holder_id(tmp_path)


def module(name: str, **constants: int) -> ModuleType:
    """A stand-in for one module of pyverbs."""
    made = ModuleType(name)
    vars(made).update(constants)
    return made


@pytest.fixture
def no_pyverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without the package: importing any part of it fails."""
    for part in ("", *(f".{p}" for p in (*binding.PARTS, *binding.ENUM_MODULES))):
        monkeypatch.setitem(sys.modules, f"pyverbs{part}", None)
    binding.verbs.cache_clear()


def test_without_pyverbs_the_remedy_is_the_distribution(tmp_path: Path, no_pyverbs: None) -> None:
    with pytest.raises(BlinkError, match=r"RDMA needs pyverbs .*python3-pyverbs.*--system-site-packages"):
        open_transport(config(tmp_path, ringd_address="10.9.1.1", key_file="key"), 0)


@pytest.mark.parametrize("layout", [("enums",), ("libibverbs_enums",), ("enums", "libibverbs_enums")], ids="+".join)
def test_constants_are_found_in_every_layout(
    layout: tuple[str, ...], no_pyverbs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rdma-core 44 has enums, 59 libibverbs_enums, 56 both, and not every name in each."""
    monkeypatch.setitem(sys.modules, "pyverbs", module("pyverbs"))
    for part in binding.PARTS:
        monkeypatch.setitem(sys.modules, f"pyverbs.{part}", module(f"pyverbs.{part}"))
    for index, name in enumerate(layout):
        last = {"IBV_LAST": 9} if index == len(layout) - 1 else {}
        monkeypatch.setitem(sys.modules, f"pyverbs.{name}", module(name, IBV_QPT_RC=2, **last))
    v = Pyverbs()
    assert (v.IBV_QPT_RC, v.IBV_LAST) == (2, 9)
    with pytest.raises(AttributeError, match="IBV_NONE"):
        _ = v.IBV_NONE
