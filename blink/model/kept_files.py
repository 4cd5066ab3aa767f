"""Which files of a HuggingFace model folder a prepared folder keeps."""

from __future__ import annotations

import json
from pathlib import Path

from blink.errors import BlinkError
from blink.model import safetensors_file
from blink.model.spec import ModelSpec

REQUIRED = ("config.json", "tokenizer.json")
REMEDIES = {
    "config.json": "name a model in HuggingFace layout",
    "tokenizer.json": "name a model that has one, or let transformers write it (AutoTokenizer … save_pretrained)",
}
KEPT = (
    *REQUIRED,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
LICENSES = ("LICENSE*", "NOTICE*")


def model_files(folder: Path) -> list[Path]:
    """The files of ``folder`` to keep, weights last. Raises BlinkError where the folder is incomplete."""
    for name in REQUIRED:
        if not (folder / name).is_file():
            raise BlinkError(f"{folder} has no {name}", REMEDIES[name])
    files = [folder / name for name in KEPT if (folder / name).is_file()]
    files += [p for pattern in LICENSES for p in sorted(folder.glob(pattern)) if p.is_file()]
    weights = safetensors_file.shards(folder)
    index = folder / safetensors_file.INDEX
    return files + ([index] if index.exists() else []) + weights


def read_spec(folder: Path) -> ModelSpec:
    """The architecture in config.json. Raises BlinkError where it is damaged or no engine can run it."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise BlinkError(f"{path} is not a JSON object", "copy it again from its source")
    try:
        return ModelSpec.from_config(config)
    except BlinkError as e:
        raise BlinkError(f"{folder}: {e.cause}", e.remedy) from None
