"""Record golden answers of a prepared model folder with transformers, for `blink smoke` to compare.

    # a model that Blink ships
    python scripts/record_golden.py MODEL_FOLDER > blink/operate/smoke/golden/FINGERPRINT.json
    # any other
    python scripts/record_golden.py MODEL_FOLDER > MODEL_FOLDER/blink-golden.json

Needs requirements/parity.in. An answer ends before the first token whose logit leads by less than MARGIN: there,
another order of float32 sums may choose the other token, and both would be right.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers

from blink.model.prepared import PreparedModel

PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n",
)
TOKENS = 16
MARGIN = 0.05


def answer(model: transformers.PreTrainedModel, prompt: list[int]) -> list[int]:
    """The greedy answer to ``prompt``, up to TOKENS tokens."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + TOKENS:
        with torch.no_grad():
            best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < MARGIN:
            break
        tokens.append(int(best.indices[0]))
    return tokens[len(prompt) :]


def main() -> None:
    """Write the record of the folder named on the command line to stdout."""
    folder = Path(sys.argv[1])
    prepared = PreparedModel.open(folder)
    tokenizer = prepared.tokenizer()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    cases = []
    for text in PROMPTS:
        prompt = tokenizer.encode(text)
        cases.append({"text": text, "prompt": prompt, "answer": answer(model, prompt)})
    record = {
        "fingerprint": prepared.fingerprint.hex(),
        "model": f"{prepared.manifest.source} {prepared.manifest.revision}",
        "origin": f"transformers {transformers.__version__}, float32 on the CPU",
        "cases": cases,
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
