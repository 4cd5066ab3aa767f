"""A card that has served gets another image, in the order that docs/operations.md gives.

Afterwards the lab is saved as `deployed` again, since a flash takes the card's snapshots with its disk.
"""

from __future__ import annotations

import json
import os

import httpx
import pytest

from images.lab import pair
from images.lab.places import STATE
from tests.lab.card.card import inserted
from tests.lab.card.host import equipped
from tests.lab.card.image import write_bfb
from tests.lab.conftest import TAG
from tests.lab.deployed import Deployed
from tests.lab.play import flash, play
from tests.vendor.identity import FIRMWARE

RELEASE = "DOCA_3.2.2_BSP_4.13.2_Debian_13-simulated"

pytestmark = [
    pytest.mark.timeout(5400),
    pytest.mark.skipif("LAB_REFLASH" not in os.environ, reason="takes a quarter of an hour: set LAB_REFLASH=1"),
]


def ready(lab: Deployed) -> httpx.Response:
    return httpx.get(f"{lab.url}/ready", timeout=60, trust_env=False)


def test_a_card_that_served_is_flashed_and_serves_again(lab: Deployed) -> None:
    bfb = write_bfb(STATE / "card-next.bfb", RELEASE)
    with inserted() as card, equipped(lab.gpu):
        card.firmware = FIRMWARE
        given = {"bluefield_image_bfb": str(bfb), "bluefield_image_release": RELEASE}
        play("playbooks/drain.yml", drain_stop=True).require()
        flash(**given).require()
        assert card.flashes == 1
        assert lab.dpu.ssh("cat /etc/mlnx-release").stdout.strip() == RELEASE
        assert "No such file" in lab.dpu.ssh("ls /opt/blink", check=False).stderr
    run = play("site.yml").require()
    assert "13 of 13 checks passed" in run.words
    lab.connect()
    assert lab.wait_healthy()
    assert ready(lab).status_code == 503, "requests come after the checks"
    play("playbooks/undrain.yml").require()
    assert ready(lab).status_code == 200
    said = lab.gpu.ssh("cat /var/lib/blink/log/audit.jsonl").stdout.splitlines()
    done = [(line["verb"], line["result"]) for line in map(json.loads, said) if "result" in line]
    assert done[-4:] == [("drain", "stopped"), ("flash", "done"), ("deploy", "done"), ("undrain", "done")]
    pair.save(TAG)
