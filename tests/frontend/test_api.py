"""The API as its clients use it, on a running appliance."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from blink.frontend import protocol
from blink.model.tokenizer import Tokenizer
from blink.ring.layout import Counter
from tests.appliance import Appliance, wait_for
from tests.frontend.conftest import Post
from tests.frontend.sse_client import stream

pytestmark = pytest.mark.e2e
HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def client(live: Appliance) -> openai.OpenAI:
    """OpenAI's own client."""
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{live.port}/v1",
        api_key="none",
        max_retries=0,
        http_client=httpx.Client(trust_env=False),
    )


def test_openai_client_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=20, extra_body={"ignore_eos": True}
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.completion_tokens == 20
    said, finishes, usages = "", [], []
    for chunk in client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=20, stream=True, stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    ):  # fmt: skip
        assert chunk.object == "chat.completion.chunk"
        if chunk.usage:
            usages.append(chunk.usage)
        for choice in chunk.choices:
            said += choice.delta.content or ""
            finishes.append(choice.finish_reason)
    assert said == answer.choices[0].message.content  # greedy by generation_config.json
    assert finishes == [None] * (len(finishes) - 1) + ["length"]
    assert usages == [answer.usage]


def test_openai_client_completions_and_models(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="org/tiny-2", prompt="a", max_tokens=3)
    assert answer.model == "org/tiny-2"
    assert answer.usage.completion_tokens <= 3
    assert [m.id for m in client.models.list()] == ["tiny", "org/tiny-2"]
    assert client.models.retrieve("org/tiny-2").id == "org/tiny-2"
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert e.value.code == "model_not_found"


def test_openai_async_client_streams_side_by_side(live: Appliance) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{live.port}/v1", api_key="x", http_client=httpx.AsyncClient(trust_env=False)
        ) as client:

            async def one(prompt: str) -> str:
                answer = await client.completions.create(
                    model="tiny", prompt=prompt, max_tokens=30, stream=True, extra_body={"ignore_eos": True}
                )
                return "".join([c.choices[0].text async for c in answer])

            return await asyncio.gather(*(one(p) for p in ["a", "b", "c", "a", "b", "c"]))

    said = asyncio.run(run())
    assert said[:3] == said[3:]
    assert len(set(said)) == 3


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("n", [1, 3])
def test_stream_structure(http: httpx.Client, path: str, n: int) -> None:
    """vllm 8625, 19650, 27572, 12584: usage once at the end, finish_reason null until the one terminal chunk, index."""
    body: dict[str, Any] = {"messages": HELLO} if "chat" in path else {"prompt": "hello"}
    body |= {"max_tokens": 12, "n": n, "ignore_eos": True, "temperature": 1, "stream_options": {"include_usage": True}}
    chunks = stream(http, path, **body)
    *talk, last = chunks
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12 * n
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 12 * n
    assert all(c["usage"] is None for c in talk)
    assert all(len(c["choices"]) == 1 for c in talk)
    for index in range(n):
        choices = [c["choices"][0] for c in talk if c["choices"][0]["index"] == index]
        assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["length"]
        if "chat" in path:
            assert choices[0]["delta"] == {"role": "assistant", "content": ""}
            assert all("role" not in c["delta"] for c in choices[1:])
            assert all(c["delta"].get("content") for c in choices[1:-1])
        else:
            assert all(c["text"] for c in choices[:-1])


def test_the_schedulers_times_only_where_asked_for(http: httpx.Client, complete: Post) -> None:
    assert "scheduler_times" not in complete(max_tokens=4)["usage"]
    (times,) = complete(max_tokens=4, ignore_eos=True, scheduler_times=True)["usage"]["scheduler_times"]
    assert 0 < times["first_token_s"] < times["last_token_s"]
    body = {"model": "tiny", "prompt": "a", "stream": True, "scheduler_times": True}
    assert http.post("/v1/completions", json=body).json()["error"]["param"] == "scheduler_times"


def test_usage_only_where_asked_for(http: httpx.Client) -> None:
    assert all("usage" not in c for c in stream(http, "/v1/completions", prompt="a", max_tokens=4))
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = stream(http, "/v1/completions", prompt="a", max_tokens=9, ignore_eos=True, stream_options=options)
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 9
    assert sum(not c["choices"] for c in chunks) == 1


@pytest.mark.parametrize(
    "prompt", ["ab", ["ab", "cd"], [65, 66, 67], [[65, 66], [67]]], ids=["text", "texts", "tokens", "token lists"]
)
def test_prompts(complete: Post, prompt: Any) -> None:
    answer = complete(prompt=prompt, n=2, max_tokens=3, ignore_eos=True)
    prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert [c["index"] for c in answer["choices"]] == list(range(2 * prompts))
    assert answer["usage"]["completion_tokens"] == 6 * prompts
    texts = [c["text"] for c in answer["choices"]]
    assert texts[::2] == texts[1::2]  # greedy


def test_answers_of_several_prompts_are_those_of_each(complete: Post) -> None:
    both = complete(prompt=["hello", "The ring"], max_tokens=6, ignore_eos=True)
    each = [complete(prompt=p, max_tokens=6, ignore_eos=True) for p in ("hello", "The ring")]
    assert [c["text"] for c in both["choices"]] == [a["choices"][0]["text"] for a in each]
    assert both["usage"]["prompt_tokens"] == sum(a["usage"]["prompt_tokens"] for a in each)


def test_defaults(complete: Post, http: httpx.Client) -> None:
    """Temperature 0 of generation_config.json; 16 tokens for completions, the rest of the context for chat."""
    assert complete(ignore_eos=True)["choices"] == complete(ignore_eos=True, temperature=0)["choices"]
    assert complete(ignore_eos=True)["usage"]["completion_tokens"] == 16
    messages = [{"role": "user", "content": "ab" * 1010}]
    answer = http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages, "ignore_eos": True}).json()
    assert answer["usage"]["total_tokens"] == 2048
    assert answer["choices"][0]["finish_reason"] == "length"


def test_seeds(complete: Post) -> None:
    """vllm 51226, 21310: a seeded answer is the same whoever shares its batch; an unseeded one varies."""
    seeded: dict[str, Any] = {"temperature": 1, "top_k": 0, "max_tokens": 24, "seed": 42, "ignore_eos": True}
    alone = complete(**seeded)["choices"][0]["text"]
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(complete, prompt=f"noise {i}", temperature=1, max_tokens=40) for i in range(4)]
        crowded = [pool.submit(complete, **seeded) for _ in range(4)]
        texts = [c.result()["choices"][0]["text"] for c in crowded]
        assert all(o.result() for o in others)
    assert texts == [alone] * 4
    three = [c["text"] for c in complete(**seeded, n=3)["choices"]]
    assert three[0] == alone
    assert len(set(three)) == 3
    unseeded = {complete(temperature=1, top_k=0, max_tokens=24)["choices"][0]["text"] for _ in range(4)}
    assert len(unseeded) > 1


def test_stop_strings(complete: Post, http: httpx.Client) -> None:
    plain = complete(max_tokens=40, ignore_eos=True)["choices"][0]["text"]
    stop = plain[7:10]
    expected = plain[: plain.index(stop)]
    for stops in (stop, [stop], ["never said", stop]):
        answer = complete(max_tokens=40, ignore_eos=True, stop=stops)
        assert answer["choices"][0]["text"] == expected
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] < 40
    kept = complete(max_tokens=40, ignore_eos=True, stop=stop, include_stop_str_in_output=True)
    assert kept["choices"][0]["text"] == expected + stop
    chunks = stream(http, "/v1/completions", prompt="The capital", max_tokens=40, ignore_eos=True, stop=stop)
    assert "".join(c["choices"][0]["text"] for c in chunks) == expected
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_matched_stop_string_cancels_in_the_ring(live: Appliance, complete: Post) -> None:
    first = complete(max_tokens=3, ignore_eos=True)["choices"][0]["text"]
    before = live.observe().counter(Counter.OUTPUT_TOKENS)
    complete(max_tokens=1500, ignore_eos=True, stop=first)
    wait_for("the request to end", lambda: live.observe().requests_held == 0, 10)
    assert live.observe().counter(Counter.OUTPUT_TOKENS) - before < 300


def test_stop_tokens_min_tokens_and_bias(complete: Post, tokenizer: Tokenizer) -> None:
    forced = {"logit_bias": {"70": 100}, "max_tokens": 6}
    text = tokenizer.token_bytes(70).decode()
    assert complete(**forced)["choices"][0]["text"] == text * 6
    second = tokenizer.token_bytes(71).decode()
    assert complete(logit_bias={"70": -100, "71": 100}, max_tokens=6)["choices"][0]["text"] == second * 6

    ended = complete(**forced, stop_token_ids=[70])
    assert (ended["choices"][0]["text"], ended["choices"][0]["finish_reason"]) == ("", "stop")
    assert ended["usage"]["completion_tokens"] == 1
    kept = complete(**forced, stop_token_ids=[70], include_stop_str_in_output=True)
    assert kept["choices"][0]["text"] == text
    later = complete(**forced, stop_token_ids=[70], min_tokens=3)
    assert later["usage"]["completion_tokens"] >= 3
    eos = complete(logit_bias={"0": 100}, max_tokens=5)
    assert (eos["choices"][0]["finish_reason"], eos["choices"][0]["text"]) == ("stop", "")
    ignored = complete(logit_bias={"0": 100}, max_tokens=5, ignore_eos=True)
    assert (ignored["choices"][0]["finish_reason"], ignored["usage"]["completion_tokens"]) == ("length", 5)
    shown = complete(logit_bias={"0": 100}, max_tokens=2, ignore_eos=True, skip_special_tokens=False)
    assert shown["choices"][0]["text"] == "<eos><eos>"


def test_as_many_stop_tokens_and_biases_as_are_allowed(complete: Post, tokenizer: Tokenizer) -> None:
    biases = {str(i): -100 for i in range(min(protocol.MAX_BIASES, tokenizer.vocab_size) - 1)}
    stops = list(range(protocol.MAX_STOP_IDS))
    answer = complete(logit_bias=biases | {"55": 100}, stop_token_ids=stops, max_tokens=4)
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("stop", 1)


@pytest.mark.parametrize("field", [{"presence_penalty": 2}, {"frequency_penalty": 2}, {"repetition_penalty": 2.0}])
def test_penalties_are_not_dropped(complete: Post, field: dict[str, float]) -> None:
    """TGI 1811, 1765: they change a repetitive answer, and are the same for every neighbour in the batch."""
    bias = {"logit_bias": {"70": 3, "71": 2.9, "72": 2.8}, "max_tokens": 40, "ignore_eos": True}
    plain, punished = complete(**bias), complete(**bias, **field)
    assert plain["choices"] != punished["choices"]
    assert complete(**bias, **field, n=3)["choices"][2]["text"] == punished["choices"][0]["text"]


def test_chat_logprobs(http: httpx.Client) -> None:
    """vllm 3179, 4795, 19177; sglang 2088."""
    body = {"messages": HELLO, "max_tokens": 10, "ignore_eos": True, "logprobs": True}
    response = http.post("/v1/chat/completions", json={"model": "tiny", **body})
    content = response.json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 10
    assert all(e["top_logprobs"] == [] and e["logprob"] <= 0 for e in content)
    data = b"".join(bytes(e["bytes"]) for e in content)
    assert data.decode("utf-8", "replace") == response.json()["choices"][0]["message"]["content"]
    body["top_logprobs"] = 3
    answer = http.post("/v1/chat/completions", json={"model": "tiny", **body}).json()
    content = answer["choices"][0]["logprobs"]["content"]
    for entry in content:  # greedy: the chosen token is the likeliest of its own position
        assert entry["top_logprobs"][0]["bytes"] == entry["bytes"]
        assert entry["top_logprobs"][0]["logprob"] == pytest.approx(entry["logprob"], abs=1e-5)
        values = [t["logprob"] for t in entry["top_logprobs"]]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
    chunks = stream(http, "/v1/chat/completions", **body)
    streamed = [e for c in chunks for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content


def test_completion_logprobs(complete: Post) -> None:
    answer = complete(max_tokens=12, ignore_eos=True, logprobs=2)["choices"][0]
    logprobs = answer["logprobs"]
    assert {len(logprobs[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {12}
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == pytest.approx(logprob, abs=1e-5)
    assert logprobs["text_offset"][0] == 0


def test_echo(complete: Post, http: httpx.Client, tokenizer: Tokenizer) -> None:
    plain = complete(max_tokens=5, ignore_eos=True)["choices"][0]["text"]
    assert complete(max_tokens=5, ignore_eos=True, echo=True)["choices"][0]["text"] == "The capital" + plain
    chunks = stream(http, "/v1/completions", prompt="The capital", max_tokens=5, ignore_eos=True, echo=True)
    assert "".join(c["choices"][0]["text"] for c in chunks) == "The capital" + plain
    ids = tokenizer.encode("The capital")
    assert complete(prompt=ids, max_tokens=5, ignore_eos=True, echo=True)["choices"][0]["text"] == "The capital" + plain


def test_a_prompt_that_ends_inside_a_character(complete: Post, tokenizer: Tokenizer) -> None:
    """vllm 48853: the answer completes the character; the prompt is not said again."""
    by_bytes = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    *start, last = [by_bytes[bytes([b])] for b in "🌶".encode()]
    prompt = [*tokenizer.encode("The capital"), *start]
    forced = {"logit_bias": {str(last): 100}, "max_tokens": 1}
    assert complete(prompt=prompt, **forced)["choices"][0]["text"] == "🌶"
    assert complete(prompt=prompt, **forced, echo=True)["choices"][0]["text"] == "The capital🌶"


def test_no_double_bos(http: httpx.Client, complete: Post, tokenizer: Tokenizer) -> None:
    """vllm 4688, 5278, 27486, 55197."""
    ids = http.post("/tokenize", json={"messages": HELLO}).json()["tokens"]
    assert ids[0] == tokenizer.bos_id
    assert ids[1] != tokenizer.bos_id
    text = http.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    assert text == "<eos>user: hello\nassistant:"
    assert http.post("/tokenize", json={"prompt": text}).json()["tokens"] == ids
    assert complete(prompt=text, max_tokens=1)["usage"]["prompt_tokens"] == len(ids)
    chat = http.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO, "max_tokens": 1}).json()
    assert chat["usage"]["prompt_tokens"] == len(ids)


def test_tokenize_and_detokenize(http: httpx.Client, tokenizer: Tokenizer) -> None:
    answer = http.post("/tokenize", json={"prompt": "Grüße 🌶", "return_token_strs": True}).json()
    assert answer["tokens"] == tokenizer.encode("Grüße 🌶")
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 2048
    plain = http.post("/tokenize", json={"prompt": "Grüße 🌶", "add_special_tokens": False}).json()["tokens"]
    assert plain == answer["tokens"][1:]
    assert http.post("/detokenize", json={"tokens": plain}).json() == {"prompt": "Grüße 🌶"}
    for body in ({}, {"prompt": "a", "messages": HELLO}):
        assert http.post("/tokenize", json=body).status_code == 400
    assert http.post("/detokenize", json={"tokens": [10**6]}).json()["error"]["param"] == "tokens"


def test_a_long_prompt_is_tokenized_like_a_short_one(http: httpx.Client, tokenizer: Tokenizer) -> None:
    text = "The capital of France is Paris. " * 300
    assert http.post("/tokenize", json={"prompt": text}).json()["tokens"] == tokenizer.encode(text)


def test_messages(http: httpx.Client) -> None:
    def prompt(messages: list[dict[str, Any]], **fields: Any) -> str:
        tokens = http.post("/tokenize", json={"messages": messages, **fields}).json()["tokens"]
        return str(http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]).removeprefix("<eos>")

    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert prompt([{"role": "developer", "content": parts}]) == "system: a\nb\nassistant:"
    assert prompt(HELLO, add_generation_prompt=False) == "user: hello\n"
    assert prompt(HELLO, chat_template_kwargs={"thinking": True}) == "user: hello\nassistant: hm"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    earlier = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "2"}]
    assert prompt(earlier, add_generation_prompt=False) == (
        'assistant: <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>\ntool: 2\n'
    )
    assert TOOLS[0]["function"]["name"] in prompt(HELLO, tools=TOOLS)  # type: ignore[index]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "king", "content": "x"}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
         "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        ([{"role": "assistant", "tool_calls": 3}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "REFUSE"}], "messages"),
    ],
)  # fmt: skip
def test_messages_that_are_refused(http: httpx.Client, messages: list[Any], param: str) -> None:
    response = http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_tools_reach_the_template_unless_none_may_be_called(http: httpx.Client) -> None:
    def tokens(**fields: Any) -> int:
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 1, **fields}
        return int(http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"])

    assert tokens(tools=TOOLS) == tokens(tools=TOOLS, tool_choice="auto") > tokens()
    assert tokens(tools=TOOLS, tool_choice="none") == tokens()


def test_context_overflow(http: httpx.Client) -> None:
    for body in ({"prompt": [70] * 3000}, {"prompt": [70] * 2000, "max_tokens": 49}):
        response = http.post("/v1/completions", json={"model": "tiny", **body})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert f"{len(body['prompt'])} tokens" in error["message"]
        assert "2048 tokens" in error["message"]
