"""The gateway as its role leaves it on a machine of its own: HAProxy under systemd, TLS on both sides, real appliances.

HAProxy is Debian's package, which the role installs there, as apt here gets it from the archive. The machine has a
network of its own, and a cable to this one, where the appliances and the clients are.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.ansible.gateway import HAPROXY, Clients
from tests.ansible.playbook import ROOT, Run, ansible
from tests.appliance import Appliance as Served
from tests.appliance import appliance
from tests.authority import Authority
from tests.ports import free_port
from tests.vendor.conftest import racked
from tests.vendor.machine import SSH, Machine
from tests.vendor.repository import COMPONENT, SUITE, Repository

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.fleet,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path(HAPROXY).exists(), reason="needs haproxy, of the Debian package"),
]
PORTS = {"ap1": 9001, "ap2": 9002}  # of the appliances, as the gateway sees them
CERTIFICATE = ROOT / "roles/gateway/files/certificate.py"


class Gateway:
    """The role's machine, its inventory, and the way to it."""

    def __init__(self, machine: Machine, folder: Path, authority: Authority) -> None:
        self.machine, self.folder, self.port = machine, folder, free_port()
        self.variables: dict[str, Any] = {
            "gateway_version": version(),
            "gateway_certificate": "".join(authority.issue("gateway")),
            "gateway_authority": authority.pem,
            "gateway_maxconn": 2000,  # within what this machine lets its own have
            "gateway_check_ms": 200,
            "gateway_slowstart_s": 1,
        }
        self.tls = ssl.create_default_context(cadata=authority.pem)
        appliances = {
            name: {
                "hosts": {f"{name}-gpu": None, f"{name}-dpu": None},
                "vars": {"blink_appliance": name, "blink_http_host": "127.0.0.1", "blink_http_port": port},
            }
            for name, port in PORTS.items()
        }
        children = {
            "appliances": {"children": appliances},
            "canary": {"children": {"ap1": None}},
            "gpu_hosts": {"hosts": {f"{name}-gpu": None for name in PORTS}},
            "dpus": {"hosts": {f"{name}-dpu": None for name in PORTS}},
            "gateways": {"hosts": {"gateway1": {"ansible_host": str(machine.directory)}}},
        }
        variables = {
            "ansible_ssh_executable": str(SSH),
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_transfer_method": "piped",
        }
        folder.mkdir()
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"vars": variables, "children": children}}))

    def play(self, *arguments: str, **variables: Any) -> Run:
        """Run gateway.yml; the variables are in a file, since a certificate's key is among them."""
        given = self.folder / "given.json"
        given.write_text(json.dumps(self.variables | variables))
        inventory, extra = str(self.folder / "hosts.yml"), f"@{given}"
        return ansible(
            "ansible-playbook", "playbooks/gateway.yml", "--inventory", inventory, "--extra-vars", extra, *arguments
        )

    def get(self, path: str) -> httpx.Response:
        """Ask it over TLS, which must be of the authority."""
        return httpx.get(f"https://127.0.0.1:{self.port}{path}", verify=self.tls, timeout=20, trust_env=False)

    def shown(self) -> str:
        """The certificate that it shows clients, as PEM."""
        return ssl.get_server_certificate(("127.0.0.1", self.port))

    def kept(self) -> str:
        """What identifies the process and the files of the gateway."""
        files = "/etc/haproxy/haproxy.cfg /etc/haproxy/blink.pem /etc/haproxy/blink-authority.pem"
        return self.machine.run(
            f"systemctl show --property MainPID haproxy; sha256sum {files}; blink-gateway loaded"
        ).stdout


def version() -> str:
    """Of HAProxy on this machine."""
    command = ["dpkg-query", "--show", "--showformat=${Version}", "haproxy"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def remove_haproxy(machine: Machine, folder: Path) -> None:
    """Take this machine's HAProxy out of ``machine``, and give apt there a source of the package."""
    command = ["apt-get", "download", "--quiet", f"haproxy={version()}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        pytest.skip(f"apt cannot fetch haproxy: {done.stderr.strip()}")
    repository = Repository(machine.directory / "debian")
    repository.take(next(folder.glob("haproxy_*.deb")))
    repository.publish()
    source = f"deb [signed-by=/vendor/{repository.key.name}] file:/vendor/debian {SUITE} {COMPONENT}"
    machine.run(f"dpkg --purge haproxy && echo '{source}' >/etc/apt/sources.list.d/debian.list")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("Fleet, simulated")


@pytest.fixture(scope="module")
def gateway(
    repository: Repository, authority: Authority, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("gateway")
    with ExitStack() as stack:
        served: list[Served] = []
        for name in PORTS:
            cert, key = root / f"{name}.pem", root / f"{name}.key"
            for file, text in zip((cert, key), authority.issue(name), strict=True):
                file.write_text(text)
            one = stack.enter_context(appliance(root / name, tiny_model, frontend={"tls_cert": cert, "tls_key": key}))
            one.backend()
            one.start("frontend")
            assert one.command("wait", "frontend").returncode == 0, one.log("frontend")
            served.append(one)
        machine = stack.enter_context(racked(repository)).host
        remove_haproxy(machine, root)
        made = Gateway(machine, root / "inventory", authority)
        leader = subprocess.run(
            ["pgrep", "-o", "-P", machine.power], capture_output=True, text=True, check=True
        ).stdout.strip()
        ends = [f"{port}:{one.port}" for port, one in zip(PORTS.values(), served, strict=True)]
        command = ["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "tests.vendor.cable"]
        cable = subprocess.Popen([*command, leader, *ends, f"{made.port}<443"], cwd=ROOT, stdout=subprocess.PIPE)
        stack.callback(cable.wait, 10)
        stack.callback(cable.terminate)
        assert cable.stdout is not None
        assert cable.stdout.readline() == b"ready\n"
        yield made


def test_check_mode_foretells_on_a_machine_that_has_nothing_yet(gateway: Gateway) -> None:
    run = gateway.play("--check", "--diff").require()
    assert f"haproxy={gateway.variables['gateway_version']} would be installed" in run.words
    assert gateway.variables["gateway_certificate"].splitlines()[1] not in run.output
    left = "/etc/haproxy /usr/sbin/haproxy /usr/local/sbin/blink-gateway /etc/apt/preferences.d/blink-gateway"
    assert gateway.machine.run(f"ls {left}", check=False).stdout == ""


def test_it_serves_the_appliances_over_tls_and_listens_on_nothing_else(gateway: Gateway) -> None:
    gateway.play().require()
    machine = gateway.machine
    installed = machine.run("dpkg-query --show --showformat='${Status} ${Version}' haproxy").stdout
    assert installed == f"install ok installed {gateway.variables['gateway_version']}"
    assert machine.run("systemctl is-enabled haproxy; systemctl is-active haproxy").stdout.split() == [
        "enabled",
        "active",
    ]
    assert (
        machine.run("blink-gateway wait ap1 serving 20; blink-gateway wait ap2 serving 20").stdout.count("is UP") == 2
    )
    assert gateway.get("/v1/models").json()["data"][0]["id"] == "tiny"
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{gateway.port}/v1/models", timeout=20, trust_env=False).raise_for_status()
    ours = {f"127.0.0.1:{port}" for port in PORTS.values()}
    listening = {line.split()[3] for line in machine.run("ss -H -l -t -n").stdout.splitlines()} - ours
    assert listening == {"0.0.0.0:443", "127.0.0.1:8405"}
    modes = machine.run("stat --format '%a %U' /etc/haproxy/haproxy.cfg /etc/haproxy/blink.pem /run/haproxy/admin.sock")
    assert set(modes.stdout.splitlines()) == {"600 root"}
    assert "haproxy" in machine.run("ps -o user= -C haproxy").stdout.split(), "what meets clients is not root"

    again = gateway.play().require()
    assert again.count("changed") == 0, again.output


def test_a_change_is_loaded_and_cuts_no_stream(gateway: Gateway, authority: Authority) -> None:
    before = gateway.kept()
    gateway.variables |= {"gateway_certificate": "".join(authority.issue("gateway")), "gateway_requests": 12}
    with Clients(gateway.port, tokens=900, tls=gateway.tls, pause_s=0) as clients:
        gateway.play().require()
    assert clients.failures == []
    after = gateway.kept()
    assert after.splitlines()[0] == before.splitlines()[0], "it was reloaded, not restarted"
    assert not set(after.splitlines()[1:3]) & set(before.splitlines()[1:3])
    assert gateway.shown() in gateway.variables["gateway_certificate"]
    # The states are saved right before the new process takes over.
    moment = float(gateway.machine.run("stat --format %.Y /var/lib/haproxy/blink-servers").stdout)
    crossing = [1 for begin, end in clients.streams if begin < moment < end]
    print(f"{len(crossing)} of {len(clients.streams)} streams of 900 tokens ran over the reload")
    assert crossing


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"gateway_authority": "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----"},
         "gateway_authority: it has no certificate, or a damaged one"),
        ({"gateway_bind": "*:99999"}, "99999"),
    ],
    ids=["authority", "configuration"],
)  # fmt: skip
def test_what_cannot_serve_is_refused_before_it_is_in_place(
    gateway: Gateway, others: dict[str, str], message: str
) -> None:
    before = gateway.kept()
    run = gateway.play(**others)
    assert run.rc != 0
    assert message in run.words
    assert gateway.kept() == before
    assert gateway.get("/v1/models").status_code == 200


def test_a_certificate_of_another_key_is_refused_by_name(gateway: Gateway, authority: Authority) -> None:
    before = gateway.kept()
    (certificate, _), (_, key) = authority.issue("gateway"), authority.issue("gateway")
    run = gateway.play(gateway_certificate=certificate + key)
    assert run.rc != 0
    assert "gateway_certificate: its private key belongs to another certificate than the first" in run.words
    assert "What to do: give certificate, chain and key as one PEM text" in run.words
    assert key.splitlines()[1] not in run.output
    assert gateway.kept() == before


def test_each_fault_of_a_certificate_has_its_name(authority: Authority) -> None:
    certificate, key = authority.issue("gateway")
    ended, its_key = authority.issue("gateway", days=-1)
    other = Authority("another").pem
    for text, cause in {
        certificate + authority.pem + key: "",
        key + certificate: "",
        "nothing": "it has no certificate",
        certificate: "it has no private key",
        certificate + key.replace("M", "N"): "its private key is damaged",
        certificate + other + key: "its chain is out of order",
        ended + its_key: "the certificate of CN=gateway ended on ",
    }.items():
        given = json.dumps({"certificate": text, "authority": ""})
        done = subprocess.run([sys.executable, CERTIFICATE], input=given, capture_output=True, text=True, check=True)
        verdict = json.loads(done.stdout)
        assert cause in verdict["cause"]
        assert bool(verdict["cause"]) == bool(cause)
