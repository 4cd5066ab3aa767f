"""Faults between two machines: what a stream, GET /health and the ring show of them."""

from __future__ import annotations

import time

from tests.lab.deployed import CONFIG, KEY, UNIT, Deployed, wait_for

TOKENS = 200


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


def test_a_stream_survives_a_short_cut(lab: Deployed) -> None:
    expected = undisturbed(lab)
    stream = lab.start_stream(tokens=TOKENS)
    stream.wait_tokens(20)
    lab.gpu.link(up=False)
    time.sleep(4)
    during = len(stream.tokens)
    lab.gpu.link(up=True)
    stream.wait_end()
    assert during < TOKENS  # the cut came before the end
    assert (stream.error, stream.finish) == (None, "length")
    assert stream.tokens == expected
    nothing_is_held(lab)


def test_a_long_cut_ends_with_its_cause_and_heals(lab: Deployed) -> None:
    stream = lab.start_stream(tokens=900)
    stream.wait_tokens(20)
    lab.dpu.link(up=False)
    stream.wait_end()
    assert stream.error is not None
    assert "link" in stream.error
    assert lab.wait_unhealthy()["hop"] == "link"
    lab.dpu.link(up=True)
    lab.wait_healthy()
    assert lab.start_stream(tokens=20).wait_end().finish == "length"
    nothing_is_held(lab)


def test_a_killed_backend_is_a_new_epoch(lab: Deployed) -> None:
    before = lab.wait_healthy()["epoch"]
    stream = lab.start_stream(tokens=900)
    stream.wait_tokens(20)
    lab.systemctl(lab.gpu, "kill --signal=KILL", "backend")
    stream.wait_end()
    assert stream.error is not None
    wait_for("another epoch", lambda: lab.wait_healthy()["epoch"] != before)
    assert lab.start_stream(tokens=20).wait_end().finish == "length"
    nothing_is_held(lab)


def test_a_killed_frontend_comes_back_to_its_partition(lab: Deployed) -> None:
    old = lab.main_pid(lab.dpu, "frontend")
    stream = lab.start_stream(tokens=900)
    stream.wait_tokens(20)
    lab.systemctl(lab.dpu, "kill --signal=KILL", "frontend")
    assert stream.wait_end().error is not None
    wait_for("systemd to start it again", lambda: lab.main_pid(lab.dpu, "frontend") not in (0, old))
    lab.wait_healthy()
    assert lab.start_stream(tokens=20).wait_end().finish == "length"
    nothing_is_held(lab)


def test_a_killed_ringd_costs_no_token(lab: Deployed) -> None:
    expected = undisturbed(lab)
    stream = lab.start_stream(tokens=TOKENS)
    stream.wait_tokens(20)
    lab.systemctl(lab.gpu, "kill --signal=KILL", "ringd")
    stream.wait_end()
    assert (stream.error, stream.finish) == (None, "length")
    assert stream.tokens == expected
    nothing_is_held(lab)


def test_the_host_reboots(lab: Deployed) -> None:
    before = lab.wait_healthy()["epoch"]
    lab.gpu.reset()
    assert lab.wait_unhealthy()["hop"] in ("link", "scheduler")
    lab.gpu.wait()
    assert lab.wait_healthy()["epoch"] != before
    assert lab.start_stream(tokens=20).wait_end().finish == "length"


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
