"""The fleet that comes as an example: what its cards would be flashed with, by Ansible's own reading of it."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from images.bluefield.config import render
from images.bluefield.settings import parse
from tests.ansible.playbook import ROOT, ansible

FLEET = ROOT / "inventory/example-fleet"
PASSWORD = "example"  # as the vault itself says
RING = {f"ap{n:03d}-dpu": f"10.9.1.{4 * n - 2}/30" for n in range(1, 5)}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the role bluefield_image hands to images.bluefield, by DPU, with the inventory's own secrets."""
    password = tmp_path_factory.mktemp("vault") / "password"
    password.write_text(PASSWORD)
    run = ansible(
        "ansible", "dpus", "--inventory", str(FLEET), "--connection", "local", "--one-line",
        "--vault-id", f"fleet@{password}", "--extra-vars", f"@{ROOT}/roles/bluefield_image/vars/main.yml",
        "--module-name", "ansible.builtin.debug", "--args", "msg={{ bluefield_image_document | to_json | b64encode }}",
    ).require()  # fmt: skip
    found = re.findall(r"^(\S+) \| SUCCESS => (.*)$", run.output, re.MULTILINE)
    return {host: json.loads(base64.b64decode(json.loads(said)["msg"])) for host, said in found}


def test_every_card_has_settings_that_become_a_bf_cfg(documents: dict[str, Any]) -> None:
    assert sorted(documents) == sorted(RING)
    keys = set()
    for host, document in documents.items():
        settings = parse(json.dumps(document))
        assert (settings.hostname, settings.appliance) == (host, host.removesuffix("-dpu"))
        assert settings.ring.address == RING[host], "the link of the inventory"
        assert settings.card_serial == f"MT2400X0000{host[4]}"
        keys.add(settings.host_key)
        assert settings.ring.address in render(settings)
    assert len(keys) == len(documents), "each card has a key of its own"
