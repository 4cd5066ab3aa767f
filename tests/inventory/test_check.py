"""Every fault of an inventory is named in one line."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from blink.errors import BlinkError
from blink.inventory.check import run
from blink.inventory.document import Inventory, read_inventory
from tests.ansible.playbook import INVENTORIES, ROOT
from tests.inventory.fleet import Json, fleet, listed, write

Break = Callable[[Json], object]


def groups(inventory: Json) -> Json:
    found: Json = inventory["all"]["children"]
    return found


def appliance(inventory: Json, name: str = "ap001") -> Json:
    found: Json = groups(inventory)["appliances"]["children"][name]
    return found


def card(inventory: Json, name: str = "ap001") -> Json:
    found: Json = appliance(inventory, name)["vars"]["blink_card"]
    return found


def variables(inventory: Json, name: str = "ap001") -> Json:
    found: Json = appliance(inventory, name)["vars"]
    return found


def remote(inventory: Json) -> Json:
    """Make ap001's card one of another server, with all that takes."""
    groups(inventory)["dpu_carriers"]["hosts"]["carrier1"] = {}
    variables(inventory)["blink_topology"] = "remote_dpu"
    card(inventory)["rshim_via"] = "carrier1"
    return inventory


def said(
    inventory: Json, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What is printed of a wrong inventory; ansible-inventory, a second a fault, is not asked what it would say."""
    write(inventory, folder)
    monkeypatch.setattr("blink.inventory.check.read_inventory", lambda sources: Inventory(listed(inventory)))
    assert run([folder]) == 1
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("inventory", INVENTORIES)
def test_the_inventories_that_come_with_blink_are_right(inventory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([ROOT / "inventory" / inventory]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("change", [lambda i: i, remote], ids=["same_card", "remote_dpu"])
def test_a_right_fleet_has_no_fault(change: Break, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inventory = fleet(3)
    change(inventory)
    assert run([write(inventory, tmp_path)]) == 0, capsys.readouterr().out
    assert "3 appliances, 6 machines: no fault" in capsys.readouterr().out


PAIR_FAULTS: dict[str, tuple[Break, str]] = {
    "two GPU hosts": (
        lambda i: (
            appliance(i)["hosts"].update({"extra": {}}),
            groups(i)["gpu_hosts"]["hosts"].update({"extra": {}}),
        ),
        "ap001: has 2 GPU hosts (ap001-gpu, extra): an appliance is one machine of gpu_hosts and one of dpus",
    ),
    "no GPU host": (
        lambda i: groups(i)["gpu_hosts"]["hosts"].pop("ap001-gpu"),
        "ap001: has no GPU host: none of its machines is in gpu_hosts: ",
    ),
    "no DPU": (
        lambda i: (appliance(i)["hosts"].pop("ap001-dpu"), groups(i)["dpus"]["hosts"].pop("ap001-dpu")),
        "ap001: has no DPU: none of its machines is in dpus: ",
    ),
    "a half in no appliance": (
        lambda i: appliance(i)["hosts"].pop("ap001-dpu"),
        "ap001-dpu: is in dpus and in no appliance: ",
    ),
    "a machine of no half": (
        lambda i: appliance(i)["hosts"].update({"extra": {}}),
        "extra: is in appliance ap001 and neither in gpu_hosts nor in dpus: ",
    ),
    "a machine in two appliances": (
        lambda i: appliance(i, "ap002")["hosts"].update({"ap001-dpu": {}}),
        "ap001-dpu: is in the appliances ap001 and ap002: leave it in one",
    ),
    "a machine below appliances": (
        lambda i: groups(i)["appliances"].update({"hosts": {"ap001-gpu": {}}}),
        "ap001-gpu: is listed in appliances itself: ",
    ),
    "no appliance": (lambda i: groups(i).pop("appliances"), "appliances: the group has no group below it: "),
    "another name": (
        lambda i: variables(i).update(blink_appliance="ap009"),
        "ap001: sets blink_appliance to ap009: set it to the group's name, ap001",
    ),
    "no name": (lambda i: variables(i).pop("blink_appliance"), "ap001: does not set blink_appliance: "),
    "halves that differ": (
        lambda i: appliance(i)["hosts"].update({"ap001-dpu": {"blink_topology": "remote_dpu"}}),
        "ap001: its machines have different values of blink_topology: set it once, on group ap001",
    ),
}
HARDWARE_FAULTS: dict[str, tuple[Break, str]] = {
    "unknown topology": (
        lambda i: variables(i).update(blink_topology="star"),
        "ap001: blink_topology 'star' is unknown: choose one of same_card, remote_dpu",
    ),
    "no card": (lambda i: variables(i).pop("blink_card"), "ap001: blink_card is missing: set it: "),
    "serial": (lambda i: card(i).pop("serial"), "ap001: blink_card.serial is None: give it as `mlxvpd"),
    "bdf": (lambda i: card(i).update(bdf="0d:00.0"), "ap001: blink_card.bdf is '0d:00.0': give it such as 0000:"),
    "GPU": (lambda i: variables(i).update(blink_gpu_uuid="0"), "ap001: blink_gpu_uuid is '0': give it as `nvidia-smi"),
    "card elsewhere": (
        lambda i: card(i).update(rshim_via="ap002-gpu"),
        "ap001: blink_card.rshim_via is 'ap002-gpu', and with same_card the GPU host holds the card: ",
    ),
    "no carrier": (
        lambda i: variables(i).update(blink_topology="remote_dpu"),
        "ap001: blink_card.rshim_via is 'ap001-gpu', which is not in dpu_carriers: with remote_dpu name the server",
    ),
    "carrier missing": (
        lambda i: (remote(i), card(i).pop("rshim_via")),
        "ap001: blink_card.rshim_via is None, which is not in dpu_carriers: ",
    ),
    "no network": (lambda i: variables(i).pop("blink_ring_net"), "ap001: blink_ring_net is None: give both ends: "),
    "half a network": (
        lambda i: variables(i)["blink_ring_net"].pop("dpu"),
        "ap001: blink_ring_net is {'host': '10.9.0.5/30'}: give both ends: ",
    ),
    "two networks": (
        lambda i: variables(i)["blink_ring_net"].update(dpu="10.9.3.2/30"),
        "ap001: blink_ring_net: 10.9.0.5/30 and 10.9.3.2/30 are not two addresses of one network: ",
    ),
    "serial twice": (
        lambda i: card(i, "ap002").update(serial=card(i)["serial"].lower()),
        "ap002: blink_card.serial mt2334x00001 is ap001's too: one of them is wrong",
    ),
    "GPU twice": (
        lambda i: variables(i, "ap002").update(blink_gpu_uuid=variables(i)["blink_gpu_uuid"]),
        "ap002: blink_gpu_uuid GPU-00000001-0000-4000-8000-000000000001 is ap001's too: ",
    ),
    "ring address twice": (
        lambda i: variables(i, "ap002").update(blink_ring_net={"host": "10.9.0.6/29", "dpu": "10.9.0.3/29"}),
        "ap002: ring address 10.9.0.6 is ap001's too: ",
    ),
    "address twice": (
        lambda i: (
            appliance(i)["hosts"].update({"ap001-gpu": {"ansible_host": "10.0.0.1"}}),
            appliance(i, "ap002")["hosts"].update({"ap002-dpu": {"ansible_host": "10.0.0.1"}}),
        ),
        "ap002: ansible_host 10.0.0.1 port 22 is ap001's too: ",
    ),
    "slot twice": (
        lambda i: (
            remote(i),
            variables(i, "ap002").update(blink_topology="remote_dpu"),
            card(i, "ap002").update(rshim_via="carrier1"),
        ),
        "ap002: blink_card.bdf 0000:0d:00.0 of carrier1 is ap001's too: ",
    ),
}
ROLLOUT_FAULTS: dict[str, tuple[Break, str]] = {
    "no canary": (lambda i: groups(i).pop("canary"), "canary: is empty, and there are 3 appliances: put one or two"),
    "half a canary": (
        lambda i: groups(i).update(canary={"hosts": {"ap001-dpu": {}}}),
        "ap001: only ap001-dpu of it is in canary: put the appliance's group below canary, not a host",
    ),
    "a strange canary": (
        lambda i: (
            groups(i)["canary"].update(hosts={"carrier1": {}}),
            groups(i)["dpu_carriers"]["hosts"].update(carrier1={}),
        ),
        "carrier1: is in canary and in no appliance: ",
    ),
}
FAULTS = PAIR_FAULTS | HARDWARE_FAULTS | ROLLOUT_FAULTS


@pytest.mark.parametrize("fault", ["", "two GPU hosts", "half a canary", "a strange canary"])
def test_ansible_reads_what_the_tests_of_faults_say_that_it_does(fault: str, tmp_path: Path) -> None:
    inventory = remote(fleet(3))
    if fault:
        FAULTS[fault][0](inventory)
    read, told = read_inventory([write(inventory, tmp_path)]), Inventory(listed(inventory))
    assert read.hostvars == {host: own for host, own in told.hostvars.items() if own}
    for group in listed(inventory):
        assert [c for c in read.children(group) if c != "ungrouped"] == told.children(group)
        assert read.hosts(group) == told.hosts(group)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_what_to_do(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = FAULTS[fault]
    inventory = fleet(3)
    change(inventory)
    assert [line for line in said(inventory, tmp_path, monkeypatch, capsys) if line.startswith(message)], fault


def test_every_fault_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inventory = fleet(3)
    for fault in ("unknown topology", "GPU", "no canary"):
        FAULTS[fault][0](inventory)
    lines = said(inventory, tmp_path, monkeypatch, capsys)
    assert (
        len([line for line in lines if line.startswith(("ap001: blink_topology", "ap001: blink_gpu", "canary:"))]) == 3
    )


@pytest.mark.parametrize(
    ("name", "text", "secret"),
    [
        ("group_vars/all.yml", "blink_ring_key: 00112233", "blink_ring_key"),
        ("group_vars/all/keys.yml", "blink_api_keys: [sk-one]", "blink_api_keys"),
        ("host_vars/ap001-dpu.yml", "ansible_become_password: hunter2", "ansible_become_password"),
        ("group_vars/dpus.yml", "bmc: {user: root, password: hunter2}", "bmc.password"),
        ("more.ini", "[gateways]\ngw1 ansible_password=hunter2 # old", "ansible_password"),
        ("more.yml", "gateways: {hosts: {gw1: {}}, vars: {pull_token: hunter2}}", "pull_token"),
    ],
)
def test_a_readable_secret_is_named_and_not_shown(
    name: str, text: str, secret: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(fleet(3), tmp_path / "inventory")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text + "\n")
    assert run([folder]) == 1
    seen = capsys.readouterr()
    lines = [line for line in seen.out.splitlines() if line.startswith(f"{folder / name}: {secret} is plain text: ")]
    assert len(lines) == 1, seen.out
    assert "hunter2" not in seen.out + seen.err
    assert "sk-one" not in seen.out + seen.err


def test_secrets_in_a_vault_and_references_to_it_are_right(tmp_path: Path) -> None:
    folder = write(fleet(3), tmp_path / "inventory")
    (folder / "group_vars").mkdir()
    (folder / "group_vars/all.yml").write_text(
        "blink_ring_key: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n"
        'blink_api_keys: "{{ vault_api_keys }}"\nansible_password: ""\nblink_ring_key_file: /var/lib/blink/ring-key\n'
    )
    assert run([folder]) == 0


def test_a_vault_whose_password_is_not_known_is_told_where_to_name_it(tmp_path: Path) -> None:
    folder = write(fleet(3), tmp_path / "inventory")
    password = tmp_path / "password"
    password.write_text("a")
    (folder / "group_vars").mkdir()
    (folder / "group_vars/all.yml").write_text("blink_api_keys: [sk-one]\n")
    vault = [str(Path(sys.executable).with_name("ansible-vault")), "encrypt", "--vault-password-file", str(password)]
    subprocess.run([*vault, str(folder / "group_vars/all.yml")], check=True, capture_output=True, timeout=60)
    with pytest.raises(BlinkError, match="ANSIBLE_VAULT_IDENTITY_LIST"):
        run([folder])


def test_a_program_that_prints_the_inventory_is_an_inventory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "inventory.py"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json\n"
        "print(json.dumps({'ap001': {'hosts': ['g', 'd'], 'vars': {'blink_appliance': 'ap001'}}, "
        "'appliances': {'children': ['ap001']}, 'gpu_hosts': {'hosts': ['g']}, 'dpus': {'hosts': ['d']}, "
        "'_meta': {'hostvars': {}}}))\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert run([program]) == 0, capsys.readouterr().out


def test_an_inventory_that_is_not_there_or_not_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(BlinkError, match="none does not exist: name an inventory"):
        run([tmp_path / "none"])
    folder = write(fleet(3), tmp_path / "inventory")
    (folder / "group_vars").mkdir()
    (folder / "group_vars/all.yml").write_text("a: [")
    with pytest.raises(BlinkError, match=r"group_vars/all.yml is not YAML \(.*\): correct it"):
        run([folder])


@pytest.mark.fleet
def test_five_hundred_appliances_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(fleet(500, canaries=3), tmp_path / "inventory")
    start = time.perf_counter()
    assert run([folder]) == 0, capsys.readouterr().out
    with capsys.disabled():
        print(f"\n500 appliances, 1000 machines: checked in {time.perf_counter() - start:.1f} s")
