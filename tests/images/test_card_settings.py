"""What a card's settings may be: the result runs as root, so each value has a form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.errors import BlinkError
from images.bluefield.__main__ import main
from images.bluefield.settings import parse
from tests.depth import examples
from tests.images.card import document, text


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"appliance": None}, "appliance"),
        ({"appliance": "AP 1"}, "appliance"),
        ({"hostname": "-dpu"}, "hostname"),
        ({"hostname": "dpu; reboot"}, "hostname"),
        ({"hostname": "dpu\nx"}, "hostname"),
        ({"password_hash": "secret"}, "password_hash"),
        ({"password_hash": "$6$salt$x'; reboot; '"}, "password_hash"),
        ({"password_hash": 5}, "password_hash"),
        ({"authorized_keys": []}, "authorized_keys"),
        ({"authorized_keys": "ssh-ed25519 AAAA"}, "authorized_keys"),
        ({"authorized_keys": ["ssh-ed25519 AAAA\nEND"]}, "authorized_keys[0]"),
        ({"authorized_keys": ['command="x" ssh-ed25519 AAAA']}, "authorized_keys[0]"),
        ({"host_key": "ssh-ed25519 AAAA"}, "host_key"),
        ({"host_key": "-----BEGIN OPENSSH PRIVATE KEY-----\nEND\n$(x)\n-----END OPENSSH PRIVATE KEY-----"}, "host_key"),
        ({"ring": None}, "ring"),
        ({"ring": {}}, "ring.address"),
        ({"ring": {"address": "10.9.1.2"}}, "ring.address"),
        ({"ring": {"address": "10.9.1.2/30", "mtu": 100}}, "ring.mtu"),
        ({"ring": {"address": "10.9.1.2/30", "mtu": True}}, "ring.mtu"),
        ({"ring": {"address": "10.9.1.2/30", "interface": "a b"}}, "ring.interface"),
        ({"ring": {"address": "10.9.1.2/30", "addres": 1}}, "ring.addres"),
        ({"ring": 5}, "ring"),
        ({"management": {"gateway": "10.0.0.1"}}, "management.gateway"),
        ({"management": {"address": "10.0.0.5/24", "gateway": "x"}}, "management.gateway"),
        ({"management": {"nameservers": ["x"]}}, "management.nameservers"),
        ({"time_servers": ["a b"]}, "time_servers[0]"),
        ({"update": {"bmc": True}}, "update.bmc"),
        ({"update": {"bmc": "yes"}}, "update.bmc"),
        ({"bmc": {"user": "root"}}, "bmc.password"),
        ({"bmc": {"user": "root", "password": "with,comma"}}, "bmc.password"),
        ({"device": "/dev/sda; x"}, "device"),
        ({"card_serial": "x y"}, "card_serial"),
        ({"bfb_sha256": "beef"}, "bfb_sha256"),
        ({"card-serial": "MT1234"}, "card-serial"),
    ],
)
def test_a_wrong_value_is_refused_by_name(host_key: str, changes: dict[str, Any], named: str) -> None:
    whole = document(host_key, **changes)
    with pytest.raises(BlinkError) as e:
        parse(json.dumps(whole))
    assert str(e.value).startswith(f"settings: {named}: ")


@pytest.mark.parametrize("broken", ["", "[]", "5", '{"appliance": '])
def test_what_is_no_object_is_refused(broken: str) -> None:
    with pytest.raises(BlinkError, match=r"settings:"):
        parse(broken)


@pytest.mark.parametrize("name", ["password_hash", "host_key", "bmc"])
def test_a_refusal_and_a_repr_never_show_a_secret(host_key: str, name: str) -> None:
    secret = "hunter2 hunter2"
    value = {"user": "root", "password": secret} if name == "bmc" else secret
    with pytest.raises(BlinkError) as e:
        parse(text(host_key, **{name: value}))
    assert secret not in str(e.value)
    shown = repr(parse(text(host_key, bmc={"user": "root", "password": "S3cret!pass"})))
    assert "S3cret" not in shown
    assert "$6$" not in shown
    assert "PRIVATE" not in shown


@given(st.text(max_size=80), st.sampled_from(["hostname", "appliance", "password_hash", "device", "card_serial"]))
@examples(200)
def test_no_value_can_leave_its_place(host_key: str, value: str, name: str) -> None:
    """Whatever is accepted holds nothing that a shell gives a meaning to outside quotes, but the hash's dollars."""
    try:
        parse(text(host_key, **{name: value}))
    except BlinkError:
        return
    assert not set(value) & set("'\"\\`;&|<>(){}*?~#! \n\t")


def test_the_command_line_names_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--settings", "/nonexistent"]) == 1
    assert "images: /nonexistent: No such file" in capsys.readouterr().err
