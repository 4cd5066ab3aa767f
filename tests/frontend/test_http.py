"""HTTP around the API: errors, ids, limits, hang-ups, metrics."""

from __future__ import annotations

import re
import socket
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from blink.frontend.routes.bodies import MAX_BODY_BYTES
from blink.ring.layout import Counter, Reason
from tests.appliance import Appliance, wait_for
from tests.frontend.conftest import Post
from tests.frontend.sse_client import events, stream

pytestmark = pytest.mark.e2e
LONG = {"model": "tiny", "prompt": "a", "max_tokens": 1900, "ignore_eos": True}
FEW_STEPS = 200  # of the tiny model, which makes several a millisecond; an answer of LONG has 1900


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/models/other", 404),
        ("POST", "/v1/completions", 400),
    ],
)
def test_every_error_has_openais_body(http: httpx.Client, method: str, path: str, status: int) -> None:
    response = http.request(method, path)
    assert response.status_code == status
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["message"]


def test_request_ids(live: Appliance, http: httpx.Client) -> None:
    assert http.get("/version", headers={"X-Request-Id": "abc-123"}).headers["x-request-id"] == "abc-123"
    made = [http.get("/version").headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1]
    odd = http.get("/version", headers={"X-Request-Id": "x" * 200}).headers["x-request-id"]
    assert odd.startswith("req-")
    assert http.post("/v1/completions", headers={"X-Request-Id": "bad-one"}).headers["x-request-id"] == "bad-one"
    wait_for("the access log", lambda: "bad-one" in live.log("frontend"), 5)


def test_a_body_that_is_too_large(http: httpx.Client) -> None:
    declared = http.post("/v1/completions", content=b"x" * (MAX_BODY_BYTES + 1))
    assert (declared.status_code, declared.json()["error"]["code"]) == (413, "request_too_large")
    chunked = http.post("/v1/completions", content=(b"x" * (1 << 20) for _ in range(9)))
    assert chunked.status_code == 413


def test_version_and_health(http: httpx.Client) -> None:
    import blink

    assert http.get("/version").json()["version"] == blink.__version__
    health = http.get("/health")
    assert (health.status_code, health.json()["status"], health.json()["hop"]) == (200, "ok", None)


def running(live: Appliance) -> int:
    return live.observe().requests_held


@pytest.mark.parametrize("streaming", [True, False])
def test_a_hang_up_frees_its_slot(live: Appliance, http: httpx.Client, streaming: bool) -> None:
    """vllm 10087, 23697, 24584; sglang 36333, 34894."""
    before = live.observe()
    with live.client() as client:
        if streaming:
            with client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
                next(events(response))
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json=LONG, timeout=httpx.Timeout(5, read=0.15))
    wait_for("the request to end", lambda: running(live) == 0, 10)
    after = live.observe()
    assert after.finished[Reason.CANCELLED] == before.finished.get(Reason.CANCELLED, 0) + 1
    assert after.counter(Counter.OUTPUT_TOKENS) - before.counter(Counter.OUTPUT_TOKENS) < 1900
    assert (after.lanes_used, after.pages_used) == (0, 0)
    wait_for("its slot", lambda: http.get("/health").json()["outstanding"] == 0, 5)
    wait_for("the access log", lambda: '" 499 ' in live.log("frontend"), 5)


def test_the_cancel_of_a_hang_up_comes_within_a_few_steps(live: Appliance) -> None:
    with live.client() as client, client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
        next(events(response))
        seen = live.observe().counter(Counter.DECODE_STEPS)
    wait_for("the request to end", lambda: running(live) == 0, 10)
    assert live.observe().counter(Counter.DECODE_STEPS) - seen < FEW_STEPS


def test_a_client_that_leaves_while_it_sends_its_body(live: Appliance, http: httpx.Client) -> None:
    with socket.create_connection(("127.0.0.1", live.port)) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        time.sleep(0.1)
    assert http.get("/health").status_code == 200
    assert "Traceback" not in live.log("frontend")


def test_over_capacity_is_429_and_nothing_is_lost(live: Appliance, http: httpx.Client) -> None:
    """12 places (4 lanes, 8 waiting): of 20 answers at once 8 are refused at once, the others complete."""
    body = LONG | {"max_tokens": 400}
    with ThreadPoolExecutor(20) as pool:
        with live.stopped("backend"):  # so that no place becomes free meanwhile
            posts = [pool.submit(http.post, "/v1/completions", json=body | {"prompt": f"p{i}"}) for i in range(20)]
            wait_for("refusals of what has no place", lambda: sum(p.done() for p in posts) == 8, 10)
        answers = [p.result(60) for p in posts]
    statuses = [a.status_code for a in answers]
    assert (statuses.count(429), statuses.count(200)) == (8, 12)
    for answer in answers:
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["type"] == "rate_limit_error"
        else:
            assert answer.json()["usage"]["completion_tokens"] == 400
    assert http.post("/v1/completions", json=body | {"max_tokens": 1}).status_code == 200


def test_all_answers_of_a_request_or_none(live: Appliance, http: httpx.Client) -> None:
    assert http.post("/v1/completions", json=LONG | {"n": 13}).json()["error"]["param"] == "n"
    body = LONG | {"n": 8, "max_tokens": 2}
    with ThreadPoolExecutor(2) as pool:
        with live.stopped("backend"):
            posts = [pool.submit(http.post, "/v1/completions", json=body) for _ in range(2)]
            done, waiting = wait(posts, timeout=10, return_when=FIRST_COMPLETED)
            assert [p.result().status_code for p in done] == [429]
        (other,) = waiting
        assert len(other.result(60).json()["choices"]) == 8
    assert len(http.post("/v1/completions", json=body).json()["choices"]) == 8


def samples(http: httpx.Client) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for s in family.samples:
            labels = {k: v for k, v in s.labels.items() if k != "model"}
            found[s.name + (str(sorted(labels.items())) if labels else "")] = s.value
    return found


def test_metrics_add_up(live: Appliance, http: httpx.Client, complete: Post) -> None:
    before = samples(http)
    complete(max_tokens=10, ignore_eos=True)
    stop = complete(max_tokens=30, ignore_eos=True)["choices"][0]["text"][4:6]
    complete(max_tokens=30, ignore_eos=True, stop=stop)
    stream(http, "/v1/completions", prompt="a", max_tokens=7, ignore_eos=True)
    wait_for("the ring to be empty", lambda: running(live) == 0, 5)
    after = samples(http)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("blink_requests_total[('finish_reason', 'length')]") == 3
    assert grown("blink_requests_total[('finish_reason', 'stop')]") == 1
    assert grown("blink_ttft_seconds_count") == 4
    assert grown("blink_tpot_seconds_count") == 4
    assert grown("blink_scheduler_ttft_seconds_count") == 4
    assert grown("blink_scheduler_tpot_seconds_count") == 4
    assert 0 < grown("blink_scheduler_ttft_seconds_sum") <= grown("blink_ttft_seconds_sum")
    assert grown("blink_e2e_seconds_count") >= 3
    assert grown("blink_output_tokens_total") >= 47
    assert grown("blink_ring_claims_total") == 4
    assert grown("blink_http_responses_total[('path', '/v1/completions'), ('status', '200')]") == 4
    assert (after["blink_requests_waiting"], after["blink_requests_running"]) == (0, 0)
    assert (after["blink_up"], after["blink_kv_pages_used"], after["blink_lanes_used"]) == (1, 0, 0)
    assert after["blink_scheduler_beat_age_seconds"] < 2


@pytest.mark.parametrize("n", [1, 3])
def test_the_schedulers_times_lie_within_the_clients(live: Appliance, http: httpx.Client, n: int) -> None:
    """One clock is behind all three here, so what happened earlier has the smaller number; TPOT has no such order."""
    name, started = f"times-{n}", time.monotonic()
    body = {"model": "tiny", "prompt": "a", "max_tokens": 40, "n": n, "ignore_eos": True, "stream": True}
    body |= {"stream_options": {"include_usage": True}, "scheduler_times": True}
    with http.stream("POST", "/v1/completions", json=body, headers={"X-Request-Id": name}) as response:
        arrived: dict[int, float] = {}
        for event in events(response):
            assert response.status_code == 200
            if isinstance(event, dict):
                last = event
                for choice in event["choices"]:
                    arrived.setdefault(choice["index"], time.monotonic() - started)
    whole = time.monotonic() - started
    times = last["usage"]["scheduler_times"]
    assert len(times) == n
    for i, t in enumerate(times):
        assert 0 < t["first_token_s"] < t["last_token_s"] <= whole
        assert t["first_token_s"] <= arrived[i]
    said = wait_for("the access log", lambda: re.search(f" {name} .*ms (.*)", live.log("frontend")), 5)[1]
    logged = {name: float(ms) for name, ms in re.findall(r"(\w+)_ms=([\d.]+)", said)}
    assert set(logged) == {"ttft", "tpot", "scheduler_ttft", "scheduler_tpot"}
    assert logged["scheduler_ttft"] == pytest.approx(1000 * max(t["first_token_s"] for t in times))
    assert logged["scheduler_ttft"] <= logged["ttft"] <= 1000 * whole
    rest = max(t["last_token_s"] - t["first_token_s"] for t in times)
    assert logged["scheduler_tpot"] == pytest.approx(1000 * rest / 39, abs=0.001)


def test_openapi_describes_the_bodies(http: httpx.Client) -> None:
    paths: dict[str, Any] = http.get("/openapi.json").json()["paths"]
    schema = paths["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"prompt", "echo", "stream_options"} <= set(schema["properties"])
