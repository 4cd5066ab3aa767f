"""From nothing to a card that can be deployed to: playbooks/flash.yml, with a bare card in a bare GPU host.

scripts/lab begins with it and deploys to what it leaves, so that everything else in this folder runs on a flashed card.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.bluefield.config import template_sha256
from images.lab import pair
from images.lab.machine import Machine
from images.lab.places import STATE
from tests.bfb.writer import bundle_parts, initramfs, stream
from tests.lab.card.card import Card, inserted, refuse_foreign
from tests.lab.card.host import equipped
from tests.lab.card.image import RELEASE, write_bfb
from tests.lab.deployed import wait_for
from tests.lab.play import flash

FLASH = STATE / "card.bfb"

pytestmark = pytest.mark.skipif(
    "LAB_FLASH" not in os.environ, reason="starts the lab anew, with a card that is flashed: set LAB_FLASH=1"
)


@pytest.fixture(scope="module")
def card() -> Iterator[Card]:
    """A card without a system in a host without an appliance; it stays as it is left."""
    refuse_foreign()
    pair.down()
    pair.build()
    write_bfb(FLASH)
    gpu = Machine("gpu01")
    gpu.start()
    gpu.wait()
    with inserted() as card, equipped(gpu):
        yield card


@pytest.mark.parametrize("kind", ["truncated", "firmware-only"])
def test_a_file_that_cannot_be_flashed_is_refused_before_the_card_sees_it(
    card: Card, tmp_path: Path, kind: str
) -> None:
    bad = tmp_path / "bad.bfb"
    if kind == "truncated":
        bad.write_bytes(FLASH.read_bytes()[:-64])
    else:
        parts = bundle_parts()
        parts[-1].data = initramfs({"./init": b"#!/bin/sh\n"})
        bad.write_bytes(stream(*parts))
    run = flash(bluefield_image_bfb=str(bad))
    assert run.rc != 0
    assert {"truncated": "truncated", "firmware-only": "firmware"}[kind] in run.words.lower()
    assert card.flashes == 0


def test_a_card_that_stops_is_named_although_bfb_install_ends_with_0(card: Card) -> None:
    card.faults["critical_error"] = True
    run = flash()
    assert run.rc != 0
    assert "dpu01 was not flashed: the card stopped with a CRITICAL ERROR" in run.words
    assert "What to do:" in run.words
    assert card.flashes == 1
    assert card.dpu.pid is None, "nothing runs on it"


def test_the_next_flash_boots_what_was_pushed_and_its_bf_cfg_says_who_it_is(card: Card) -> None:
    card.faults.clear()
    flash().require()
    assert card.flashes == 2
    # The image has no host key, authorized key, name or address: that SSH gets in shows that bf.cfg brought them.
    card.dpu.wait()
    assert card.dpu.ssh("hostname").stdout.strip() == "dpu01"
    assert card.dpu.ssh("cat /etc/mlnx-release").stdout.strip() == RELEASE
    card.dpu.link(up=False)
    wait_for("the cut cable to be noticed", lambda: "DOWN" in card.dpu.ssh("ip -brief link show ring0").stdout)
    time.sleep(2)  # an address that goes with the carrier goes after it
    assert "10.9.1.2/30" in card.dpu.ssh("ip -brief address show ring0").stdout
    card.dpu.link(up=True)
    assert card.dpu.ssh("cat /root/.ssh/authorized_keys /etc/ssh/ssh_host_*", check=False).stdout == ""
    image = json.loads(card.dpu.ssh("cat /etc/blink-image.json").stdout)
    assert image == {
        "appliance": "ap001",
        "bfb_sha256": hashlib.sha256(FLASH.read_bytes()).hexdigest(),
        "template_sha256": template_sha256(),
    }
    log = card.dpu.ssh("stat --format %a /root/*.installation.log").stdout
    assert log.strip() == "600"  # bf.cfg is in it
    assert "No such file" in Machine("gpu01").ssh("ls /var/lib/blink/flash/*/bf.cfg", check=False).stderr


def test_a_second_run_changes_nothing(card: Card) -> None:
    assert flash().require().count("changed") == 0
    assert card.flashes == 2
