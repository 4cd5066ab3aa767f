"""transformers as the independent reference; only the parity suite and the recorder import this."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers


def load_teacher(folder: Path) -> Any:
    """The model of a checkpoint folder, float32, with attention that is written out."""
    config = json.loads((folder / "config.json").read_text())
    if config.get("rope_scaling", {}).get("type") == "su":  # the first name of longrope, which it no longer reads
        config["rope_scaling"]["type"] = "longrope"
        (folder / "config.json").write_text(json.dumps(config))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def greedy(model: Any, prompt: list[int], count: int) -> tuple[list[int], float]:
    """``count`` tokens after ``prompt``, end tokens included, and the smallest lead of a chosen logit over the next."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(
                ids
            ),  # without it, pad tokens of the prompt (SmolLM2's <|im_end|>) are masked
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
    top = torch.stack(out.logits)[:, 0].topk(2).values
    return out.sequences[0, len(prompt) :].tolist(), float((top[:, 0] - top[:, 1]).min())


def logits(model: Any, ids: list[int]) -> Any:
    """Logits of every position, f32 [tokens, vocab]."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()
