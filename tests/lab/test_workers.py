"""A frontend of several workers over RDMA: each has its own partition, queue pairs and doorbell."""

from __future__ import annotations

import time

from tests.lab.deployed import CONFIG, Deployed, Stream, wait_for
from tests.lab.soak import verbs_objects
from tests.lab.test_faults import nothing_is_held

TOKENS = 400
QUEUE_PAIRS = 3  # of one worker, on each machine


def connections(lab: Deployed) -> dict[int, int]:
    """How many connections to the API each worker process has, by process id."""
    lines = lab.dpu.ssh("ss --no-header --tcp --numeric --processes state established '( sport = :8000 )'").stdout
    pids = [int(line.split("pid=")[1].split(",")[0]) for line in lines.splitlines() if "pid=" in line]
    return {pid: pids.count(pid) for pid in pids}


def both_healthy(lab: Deployed) -> bool:
    """Each worker says that it serves; the kernel gives a question to either."""
    answers = [lab.health() for _ in range(8)]
    return {body["partition"] for status, body in answers if status == 200} == {0, 1}


def right(stream: Stream, expected: list[str]) -> None:
    """The stream is what it should be, to its end."""
    stream.wait_end()
    assert (stream.error, stream.finish) == (None, "length")
    assert stream.tokens == expected


def test_two_workers_have_a_partition_each(lab: Deployed) -> None:
    one = verbs_objects(lab.dpu)["qp"]
    for machine in (lab.gpu, lab.dpu):
        edit = r"s/^slots = .*/slots = 192\npartitions = 3/; s/^\[frontend\]$/[frontend]\nworkers = 2/"
        machine.ssh(f"sed -i '{edit}' {CONFIG} && /opt/blink/bin/blink config check {CONFIG}")
    lab.systemctl(lab.dpu, "stop", "frontend")
    lab.systemctl(lab.gpu, "restart", "backend")
    lab.systemctl(lab.dpu, "start", "frontend")

    def both_connected() -> bool:
        return verbs_objects(lab.dpu)["qp"] == one + QUEUE_PAIRS

    wait_for("both workers to have their queue pairs", both_connected, 240)
    wait_for("both workers to serve", lambda: both_healthy(lab), 240)
    expected = lab.start_stream(tokens=TOKENS).wait_end().tokens
    assert len(expected) == TOKENS

    streams: list[Stream] = []

    def both_serve() -> bool:
        streams.append(lab.start_stream(tokens=TOKENS))
        time.sleep(1)  # the kernel gives a connection to either
        return len(connections(lab)) == 2

    wait_for("a stream through each worker", both_serve)
    lab.gpu.link(up=False)
    time.sleep(3)
    lab.gpu.link(up=True)
    for stream in streams:
        right(stream, expected)

    streams.clear()
    wait_for("a stream through each worker", both_serve)
    victim = min(connections(lab), key=lambda pid: connections(lab).get(pid, 0))
    lab.dpu.ssh(f"kill -KILL {victim}")
    ends = [stream.wait_end() for stream in streams]
    assert any(stream.broken for stream in ends)
    assert any(stream.tokens == expected for stream in ends), "the other worker was disturbed"
    for stream in ends:
        assert stream.tokens == expected[: len(stream.tokens)]
    wait_for("another worker to take the partition over", both_connected, 240)
    wait_for("both workers to serve again", lambda: both_healthy(lab), 240)
    nothing_is_held(lab)
