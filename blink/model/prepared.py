"""A prepared model folder, as the backend and the frontend read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from blink.errors import BlinkError
from blink.model import safetensors_file
from blink.model.chat import ChatTemplate
from blink.model.manifest import Manifest, read_manifest, sha256_of
from blink.model.progress import Progress
from blink.model.tokenizer import Tokenizer

_PREPARE = "prepare the model again (`blink model prepare SOURCE DEST`)"


class PreparedModel:
    """An open prepared folder: ``path``, ``manifest``, ``config``, ``generation_config`` and ``eos_ids``."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self.config: dict[str, Any] = self._json("config.json")
        self.generation_config: dict[str, Any] = self._json("generation_config.json", optional=True)
        self.eos_ids = _eos_ids(path, self.generation_config, self.config)

    @classmethod
    def open(cls, path: Path, *, weights: bool = True) -> PreparedModel:
        """Open ``path``, checking that every file is there with its size; contents only by :meth:`verify`.

        A frontend needs no weights: with ``weights=False`` the safetensors files may be missing.
        Raises BlinkError naming the folder or file.
        """
        manifest = read_manifest(path)
        for name, record in manifest.files.items():
            file = path / name
            if file.suffix == ".safetensors" and not weights:
                continue
            try:
                size = file.stat().st_size
            except OSError as e:
                raise BlinkError(f"{file}: {e.strerror}", _PREPARE) from None
            if size != record.size:
                raise BlinkError(f"{file} has {size} bytes and not {record.size}", _PREPARE)
        return cls(path, manifest)

    @property
    def fingerprint(self) -> bytes:
        """32 bytes; equal where configuration, tokenizer and weights are."""
        return bytes.fromhex(self.manifest.fingerprint)

    def verify(self) -> None:
        """Hash every file. Raises BlinkError for the first whose contents are not those that were prepared."""
        total = sum(f.size for f in self.manifest.files.values())
        progress = Progress(f"checking {self.path}", total)
        for name, record in self.manifest.files.items():
            if sha256_of(self.path / name, progress) != record.sha256:
                raise BlinkError(f"{self.path / name} is damaged (its SHA-256 differs from the manifest's)", _PREPARE)
        for _ in safetensors_file.iter_entries(self.path):
            pass

    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """Tensors by HuggingFace name: read-only views of memory-mapped files, in the checkpoint's own type.

        bfloat16 comes as its bits in uint16; :func:`blink.model.safetensors_file.to_float32` converts each type.
        Raises BlinkError for a damaged file.
        """
        out: dict[str, npt.NDArray[Any]] = {}
        for shard in safetensors_file.shards(self.path):
            out |= safetensors_file.map_tensors(shard)
        return out

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return Tokenizer(self.path / "tokenizer.json", special_tokens=self._special_tokens(), eos_ids=self.eos_ids)

    def chat_template(self, override: Path | None = None) -> ChatTemplate:
        """The model's chat template, or the one in the file ``override``.

        Raises BlinkError where neither exists.
        """
        if override is not None:
            templates, name = {"default": _text(override, "name a readable template file")}, str(override)
        else:
            templates, name = self._templates(), f"the chat template of {self.path.name}"
        return ChatTemplate(
            templates["default"],
            tools_source=templates.get("tool_use"),
            special_tokens=self._special_tokens(),
            name=name,
        )

    def _templates(self) -> dict[str, str]:
        """The checkpoint's templates by name: "default", and "tool_use" where older ones have it."""
        jinja = self.path / "chat_template.jinja"
        if jinja.exists():
            return {"default": _text(jinja, _PREPARE)}
        for file in ("chat_template.json", "tokenizer_config.json"):
            found = self._json(file, optional=True).get("chat_template")
            named = found if isinstance(found, list) else [{"name": "default", "template": found}]
            texts = {t.get("name"): t.get("template") for t in named if isinstance(t, dict)}
            templates = {str(k): v for k, v in texts.items() if isinstance(v, str)}
            if "default" in templates:
                return templates
        raise BlinkError(
            f"{self.path} has no chat template",
            "set chat_template in the [model] section to a template file, or send prompts to /v1/completions",
        )

    def _special_tokens(self) -> dict[str, str]:
        found = self._json("special_tokens_map.json", optional=True) | self._json(
            "tokenizer_config.json", optional=True
        )
        texts = {k: v["content"] if isinstance(v, dict) and "content" in v else v for k, v in found.items()}
        return {k: text for k, text in texts.items() if k.endswith("_token") and isinstance(text, str)}

    def _json(self, name: str, optional: bool = False) -> dict[str, Any]:
        path = self.path / name
        if optional and not path.exists():
            return {}
        try:
            value = json.loads(_text(path, _PREPARE))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise BlinkError(f"{path} is not a JSON object", _PREPARE)
        return value


def _text(path: Path, remedy: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as e:
        raise BlinkError(f"{path}: {e.strerror}", remedy) from None
    except UnicodeDecodeError:
        raise BlinkError(f"{path} is not UTF-8 text", remedy) from None


def _eos_ids(path: Path, *configs: dict[str, Any]) -> list[int]:
    """End-of-sequence ids from the first configuration that has them; a number or a list there."""
    for config in configs:
        value = config.get("eos_token_id")
        ids = [value] if isinstance(value, int) else value
        if isinstance(ids, list) and ids and all(isinstance(i, int) and i >= 0 for i in ids):
            return list(dict.fromkeys(ids))
    raise BlinkError(
        f"{path} names no eos_token_id", "add it to generation_config.json of the source and prepare the model again"
    )
