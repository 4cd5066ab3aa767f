"""A support bundle has what helps, and none of the secrets that were planted in every place it looks at."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.cli import main
from blink.config import load_config
from blink.operate.support.redact import MASK, clean
from blink.operate.support.sources import SECRET_FILES, configuration

API_KEY = "sk-blink-Zx81pQ7-planted"
OTHER_API_KEY = "plain words as a key"
RING_KEY = "5eed" * 16
NEXT_RING_KEY = "0ff1ce" * 10 + "abcd"
CRYPT = "$6$plantedsalt$" + "Hq9" * 28
BMC_PASSWORD = "BmcPlanted!77"
ENVIRONMENT = "env-planted-value"


def private_key(folder: Path) -> str:
    path = folder / "tls-key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-m", "PEM", "-f", str(path)], check=True, timeout=60
    )
    return path.read_text()


class Appliance:
    """The folder of an appliance that nobody serves, with secrets in it, and tools that print some."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tls_key = private_key(folder)
        (folder / "api-keys").write_text(f"{API_KEY}\n{OTHER_API_KEY}\n")
        (folder / "ring-key").write_text(RING_KEY)
        (folder / "ring-key-next").write_text(NEXT_RING_KEY)
        (folder / "bf.cfg").write_text(f"ubuntu_PASSWORD='{CRYPT}'\nBMC_PASSWORD='{BMC_PASSWORD}'\n{self.tls_key}")
        (folder / "log").mkdir()
        body = self.tls_key.splitlines()[2]
        (folder / "log/frontend.log").write_text(
            "INFO request 17 took 20 ms, prompt_tokens=12\n"
            f"Authorization: Bearer {API_KEY}\n"
            f"key was '{OTHER_API_KEY}' again\n"
            f"argv: --ring-key {RING_KEY}\n{NEXT_RING_KEY.upper()}\n"
            f"one line of it: {body}\n{self.tls_key}"
            f"ubuntu_PASSWORD='{CRYPT}'\nBMC_PASSWORD={BMC_PASSWORD}\nbmc_password: \"{BMC_PASSWORD}\"\n"
            f"fetching https://operator:{BMC_PASSWORD}@mirror.example/x\n"
        )
        (folder / "log/notes.txt").write_text(f"not a log: {API_KEY}\n")
        self.config = folder / "blink.toml"
        self.config.write_text(
            f"""
[instance]
name = "planted"
run_dir = "{folder}/run"
ring_dir = "{folder}/ring"
[model]
path = "{folder}/model"
served_name = "tiny"
[frontend]
port = 18999
api_keys_file = "{folder}/api-keys"
tls_cert = "{folder}/tls-cert"
tls_key = "{folder}/tls-key"
[rdma]
ringd_address = "10.9.1.1"
key_file = "{folder}/ring-key"
next_key_file = "{folder}/ring-key-next"
"""
        )
        self.tools = folder / "tools"
        self.tools.mkdir()
        for tool in ("nvidia-smi", "rdma", "journalctl", "mlxconfig", "ip", "systemctl"):
            (self.tools / tool).write_text(
                f"#!/bin/sh\necho {tool} says hello\ncat {folder}/log/frontend.log\necho $PLANTED >/dev/null\n"
            )
            (self.tools / tool).chmod(0o755)

    def secrets(self) -> list[str]:
        lines = [line for line in self.tls_key.splitlines() if not line.startswith("-----")]
        keys = [API_KEY, OTHER_API_KEY, RING_KEY, NEXT_RING_KEY, NEXT_RING_KEY.upper()]
        return [*keys, CRYPT, BMC_PASSWORD, ENVIRONMENT, *lines]


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Appliance:
    return Appliance(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def bundle(appliance: Appliance) -> Path:
    output = appliance.folder / "support.tar.gz"
    planted = {"PATH": f"{appliance.tools}:{os.environ['PATH']}", "PLANTED": ENVIRONMENT, "API_KEY": API_KEY}
    ran = subprocess.run(
        [sys.executable, "-m", "blink", "support-bundle", "--config", str(appliance.config), "--output", str(output)],
        env={**os.environ, **planted},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "look through it" in ran.stdout
    return output


def content(bundle: Path) -> dict[str, bytes]:
    with tarfile.open(bundle) as tar:
        files = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    assert all(name.startswith("support/") for name in files)
    return {name.removeprefix("support/"): data for name, data in files.items()}


def test_no_secret_gets_out(appliance: Appliance, bundle: Path) -> None:
    with tarfile.open(bundle) as tar:
        names = "\n".join(tar.getnames()).encode()
    everything = b"\n".join(content(bundle).values()) + names
    assert b"nvidia-smi says hello" in everything
    for secret in appliance.secrets():
        assert secret.encode() not in everything, secret[:8]
    for half in (API_KEY[4:], BMC_PASSWORD[:9], CRYPT[3:20], RING_KEY[:32]):
        assert half.encode() not in everything


def test_what_is_not_on_the_list_stays(bundle: Path) -> None:
    files = content(bundle)
    assert not [name for name in files if "bf.cfg" in name or "notes" in name or "key" in name.split("/")[-1]]


def test_what_helps_is_there(bundle: Path) -> None:
    files = content(bundle)
    assert b"INFO request 17 took 20 ms, prompt_tokens=12" in files["logs/frontend.log"]
    config = json.loads(files["blink/config.json"])
    assert config["instance.name"] == "planted"
    assert config["frontend.port"] == 18999
    assert config["rdma.key_file"].startswith("a file of 64 bytes, mode 0")
    status = json.loads(files["blink/status.json"])
    assert status["state"] == "down"
    assert "ring" in status["cause"]
    assert b"numpy==" in files["blink/packages"]
    assert b"Linux" in files["system/uname"]
    for name in ("logs/journal", "logs/kernel", "system/units", "gpu/nvidia-smi", "rdma/links"):
        assert b"says hello" in files[name], name


def test_the_manifest_says_where_everything_is_from(bundle: Path) -> None:
    files = content(bundle)
    listed = {f["path"]: f for f in json.loads(files.pop("MANIFEST.json"))["files"]}
    assert {n: f["sha256"] for n, f in listed.items()} == {n: hashlib.sha256(d).hexdigest() for n, d in files.items()}
    assert listed["gpu/topology"]["command"] == ["nvidia-smi", "topo", "-m"]
    assert listed["blink/status.json"]["exit_code"] == 1
    assert listed["rdma/devices"]["exit_code"] is None or isinstance(listed["rdma/devices"]["exit_code"], int)


def test_only_its_owner_may_read_it(bundle: Path) -> None:
    assert bundle.stat().st_mode & 0o777 == 0o600


def test_a_file_that_exists_is_left_alone(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = bundle.read_bytes()
    assert main(["support-bundle", "--no-smoke", "--output", str(bundle)]) == 1
    assert "name a new file" in capsys.readouterr().err
    assert bundle.read_bytes() == before


def test_it_works_where_the_configuration_does_not(tmp_path: Path) -> None:
    config = tmp_path / "blink.toml"
    config.write_text("[instance]\nname = 5\n")
    output = tmp_path / "support.tar.gz"
    assert main(["support-bundle", "--no-smoke", "--config", str(config), "--output", str(output)]) == 0
    assert b"instance.name" in content(output)["blink/config.json"]


def test_a_field_of_text_is_left_out_until_it_is_listed(appliance: Appliance) -> None:
    shown = configuration(load_config(appliance.config))
    assert shown["frontend.tls_cert"] == "[left out]"
    for name in SECRET_FILES:
        assert str(appliance.folder) not in str(shown[name])


@given(st.text(alphabet="abcXYZ0189+/=.-_!", min_size=6, max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_a_known_secret_is_masked_wherever_it_stands(secret: str, before: str, after: str) -> None:
    cleaned = clean(before + secret + after, [secret])
    assert secret not in cleaned or secret in MASK


@pytest.mark.parametrize(
    "line",
    [
        "prompt_tokens: 12, tokens=5",
        "epoch 0123456789abcdef phase decode",
        "NVRM: Xid (PCI:0000:0d:00): 79, GPU has fallen off the bus.",
        "ap001-gpu blink-ap001-backend[812]: serving 8 lanes",
        '{"output_tokens": 1700, "state": "up"}',
    ],
)
def test_what_a_reader_needs_is_not_masked(line: str) -> None:
    assert clean(line, []) == line
