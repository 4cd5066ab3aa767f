"""The role `release` takes a half from an unpacked set, and does not pack one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ansible.playbook import ROOT, ansible

PLAY = """
- hosts: localhost
  gather_facts: false
  connection: local
  tasks:
    - ansible.builtin.include_role: {name: CHECKOUT/roles/release, tasks_from: pack}
    - ansible.builtin.debug: {msg: "took {{ release_bundle_tar }} {{ release_bundle_id }}"}
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    blink_checkout: CHECKOUT
    blink_venv: /nonexistent/venv
    blink_transport: shm
    release_method: bundle
    release_python: "3.12"
    release_arch: aarch64
    release_requirements: [frontend.txt]
    release_set: SET
"""


@pytest.mark.parametrize("there", [True, False])
def test_a_half_of_the_set_is_taken(tmp_path: Path, there: bool) -> None:
    half = tmp_path / "set/halves/frontend.txt-3.12-aarch64.tar"
    half.parent.mkdir(parents=True)
    if there:
        half.touch()
        half.with_name(f"{half.name}.id").write_text("0123456789abcdef\n")
    play = tmp_path / "play.yml"
    play.write_text(PLAY.replace("CHECKOUT", str(ROOT)).replace("SET", str(tmp_path / "set")))
    run = ansible("ansible-playbook", "-i", "localhost,", str(play))
    assert (run.rc == 0) is there, run.output
    assert (f"took {half} 0123456789abcdef" if there else f"{half}.id: No such file") in run.words
