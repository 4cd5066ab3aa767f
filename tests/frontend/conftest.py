"""An appliance with a small random model that can chat: real backend, real ring, real frontend, one per session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from blink.model.prepare import prepare
from blink.model.prepared import PreparedModel
from blink.model.tokenizer import Tokenizer
from tests.appliance import Appliance, appliance
from tests.tiny_model import write_checkpoint

# It begins with BOS, as many do, and describes tools and their calls as Hermes does.
TEMPLATE = (
    "{{ bos_token }}{% if tools %}Call one as <tool_call>name, arguments</tool_call>: {{ tools | tojson }} {% endif %}"
    "{% for m in messages %}{% if m.role == 'refuse' or m.content == 'REFUSE' %}{{ raise_exception('no') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if thinking %} hm{% endif %}{% endif %}"
)
ENGINE = {"max_context": 2048, "pages": 1200}


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared model whose tokenizer adds a BOS token, with a chat template and defaults for sampling."""
    root = tmp_path_factory.mktemp("chat")
    source = write_checkpoint(root / "source")
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<eos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<eos>": {"id": "<eos>", "ids": [0], "tokens": ["<eos>"]}},
    }
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    (source / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<eos>", "eos_token": "<eos>", "chat_template": TEMPLATE})
    )
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, "temperature": 0.0, "top_k": 50}))
    prepare(str(source), root / "model")
    return root / "model"


@pytest.fixture(scope="session")
def tokenizer(chat_model: Path) -> Tokenizer:
    """The tokenizer that the frontend uses."""
    return PreparedModel.open(chat_model).tokenizer()


@pytest.fixture(scope="session")
def live(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """A running appliance; tests leave it idle."""
    with appliance(tmp_path_factory.mktemp("live"), chat_model, engine=ENGINE) as a:
        names = "served_name = 'tiny'\naliases = ['org/tiny-2']"
        a.config_path.write_text(a.config_path.read_text().replace("served_name = 'tiny'", names))
        a.backend()
        a.frontend()
        yield a


@pytest.fixture
def http(live: Appliance) -> Iterator[httpx.Client]:
    """An HTTP client of the running appliance."""
    with live.client() as client:
        yield client


Post = Callable[..., dict[str, Any]]


@pytest.fixture
def complete(http: httpx.Client) -> Post:
    """POST /v1/completions with a body of keyword arguments; the answer of a successful request."""

    def post(**fields: Any) -> dict[str, Any]:
        response = http.post("/v1/completions", json={"model": "tiny", "prompt": "The capital", **fields})
        assert response.status_code == 200, response.text
        return response.json()  # type: ignore[no-any-return]

    return post
