"""What a frontend of the other machine is refused for, and who else knocks. Faults under load are in test_soak.py."""

from __future__ import annotations

from tests.lab.deployed import CONFIG, KEY, UNIT, Deployed, wait_for

TOKENS = 200
RELEASE = "/opt/blink/lib/python3*/site-packages"


def undisturbed(lab: Deployed) -> list[str]:
    """The tokens of the stream when nothing happens."""
    stream = lab.start_stream(tokens=TOKENS).wait_end()
    assert (stream.error, stream.finish, len(stream.tokens)) == (None, "length", TOKENS)
    assert len(set(stream.tokens)) > 50  # else a lost token could not be told from a doubled one
    return stream.tokens


def nothing_is_held(lab: Deployed) -> None:
    """Every request has left the scheduler, and every slot is free again."""
    wait_for("the scheduler to hold no request", lambda: lab.status()["requests"]["held"] == 0)
    wait_for("lanes and pages", lambda: lab.status()["lanes"]["used"] == lab.status()["pages"]["used"] == 0)
    assert lab.health()[1]["outstanding"] == 0


def test_another_release_is_refused_and_named(lab: Deployed) -> None:
    code = f"{RELEASE}/blink/release.py"
    lab.dpu.ssh(f"cp -p {code} /root/ && echo '# changed' | tee -a {code}")
    lab.systemctl(lab.dpu, "restart", "frontend")
    assert lab.wait_unhealthy("this blink-ringd")["hop"] == "link"
    lab.dpu.ssh(f"cp -p /root/release.py {code}")
    lab.systemctl(lab.dpu, "restart", "frontend")
    lab.wait_healthy()


def test_a_wrong_key_is_refused_and_named(lab: Deployed) -> None:
    lab.dpu.ssh(f"cp -p {KEY} {KEY}.right && (echo {'ab' * 32}) > {KEY}")
    lab.dpu.ssh(f"systemctl restart {UNIT.format('frontend')}")
    assert lab.wait_unhealthy("key")["hop"] == "link"  # before it has tried, the reason is another
    smoke = lab.dpu.ssh(f"/opt/blink/bin/blink smoke --config {CONFIG}", check=False, timeout_s=400)
    assert smoke.returncode == 1
    assert "key" in smoke.stdout
    lab.dpu.ssh(f"mv {KEY}.right {KEY} && systemctl restart {UNIT.format('frontend')}")
    lab.wait_healthy()


def test_a_port_scan_disturbs_nobody(lab: Deployed) -> None:
    expected = undisturbed(lab)
    ringd = lab.main_pid(lab.gpu, "ringd")
    stream = lab.start_stream(tokens=TOKENS)
    stream.wait_tokens(20)
    # Connections that say nothing, nonsense, and half a greeting, from the machine that may connect.
    lab.dpu.ssh(
        "python3 -c '"
        "import os, socket\n"
        "held = []\n"
        "for i in range(60):\n"
        '    s = socket.create_connection(("10.9.1.1", 18515), 10)\n'
        "    s.sendall(os.urandom(i * 8))\n"
        "    held.append(s) if i % 3 else s.close()\n"
        "'"
    )
    stream.wait_end()
    assert (stream.error, stream.finish) == (None, "length")
    assert stream.tokens == expected
    assert lab.main_pid(lab.gpu, "ringd") == ringd
    nothing_is_held(lab)
