"""Tokenizers of published models, rebuilt from GGUF, against encodings recorded with the original tokenizers.

llama.cpp ships both: ``ggml-vocab-NAME.gguf``, texts in ``.inp`` and, in ``.out``, the ids that the model's own
HuggingFace tokenizer gave for them. Where llama-cpp-python is installed too, this project's corpus is compared live.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from pathlib import Path

import pytest

from blink.model.gguf_file import GgufFile
from blink.model.gguf_tokenizer import GgufTokenizer
from blink.model.tokenizer import Tokenizer
from tests.model.corpus import as_utf8, generated, texts
from tests.model.parity.llama_cpp import models

pytestmark = pytest.mark.parity

RECORDED = ("command-r", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "refact", "starcoder")
# Name, a token that begins a turn and one that ends it.
LIVE = {
    "llama-bpe": ("<|begin_of_text|>", "<|eot_id|>"),
    "qwen2": ("<|im_start|>", "<|im_end|>"),
    "gpt-2": ("<|endoftext|>", "<|endoftext|>"),
    "phi-3": ("<|user|>", "<|end|>"),
    "llama-spm": ("<s>", "</s>"),
    "starcoder": ("<|endoftext|>", "<|endoftext|>"),
    "aquila": ("<|endoftext|>", "<|endoftext|>"),
}


@cache
def vocabulary(name: str) -> Path:
    return models() / f"ggml-vocab-{name}.gguf"


def rebuilt(path: Path, folder: Path) -> Tokenizer:
    with GgufFile(path) as file:
        for name, text in GgufTokenizer(path, file.metadata).files().items():
            (folder / name).write_text(text, encoding="utf-8")
    return Tokenizer(folder / "tokenizer.json")


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_encodings(tmp_path, name):
    path = vocabulary(name)
    given = path.with_name(path.name + ".inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    expected = [[int(i) for i in line.split()] for line in path.with_name(path.name + ".out").read_text().split("\n")]
    tokenizer = rebuilt(path, tmp_path)
    assert len(given) == len(expected) > 40
    assert [tokenizer.encode(t, add_special_tokens=False) for t in given] == expected


@pytest.mark.parametrize("name", LIVE)
def test_live(tmp_path, name):
    llama_cpp = pytest.importorskip(
        "llama_cpp", reason="llama-cpp-python compiles for long; install it to compare live"
    )
    model = llama_cpp.Llama(str(vocabulary(name)), vocab_only=True, verbose=False)
    tokenizer = rebuilt(vocabulary(name), tmp_path)
    for text in texts(*LIVE[name]) + generated(400, seed=1):
        given = as_utf8(text).decode()
        if name == "qwen2":  # its own tokenizer normalizes to NFC, and llama.cpp does not
            given = unicodedata.normalize("NFC", given)
        expected = model.tokenize(given.encode(), add_bos=False, special=True)
        assert tokenizer.encode(text, add_special_tokens=False) == expected, ascii(text)
