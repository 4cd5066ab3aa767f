"""The product's playbooks on the lab, and flash.yml with the card that is in gpu01."""

from __future__ import annotations

import json
from typing import Any

from tests.ansible.playbook import Run, ansible

PLAY_S = 1700.0  # of one playbook; more than the role gives the card


def play(playbook: str, *arguments: str, **variables: Any) -> Run:
    """Run a playbook on inventory/lab; ``variables`` go before those of the inventory."""
    extra = ["--extra-vars", json.dumps(variables)] if variables else []
    return ansible(
        "ansible-playbook", "--inventory", "inventory/lab", playbook, *arguments, *extra, timeout_s=PLAY_S
    )  # fmt: skip


def flash(**variables: Any) -> Run:
    """Run flash.yml; the card is as tests/lab/card/hosts.yml says."""
    return play("playbooks/flash.yml", "--inventory", "tests/lab/card/hosts.yml", **variables)
