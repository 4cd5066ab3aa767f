"""The tokenizer that a GGUF file describes, as the files of a HuggingFace folder.

Two kinds: ``gpt2`` is byte-level BPE with merges, and ``llama`` is SentencePiece BPE with scores and byte fallback.
Where llama.cpp simplifies, the original tokenizer of the family is followed: Qwen normalizes to NFC.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from blink.errors import BlinkError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # tokenizer.ggml.token_type

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _CL100K.replace("DIGITS", "3")
_QWEN2 = _CL100K.replace("{1,DIGITS}", "")
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Pre:
    """How text is cut before merging: by each regex in turn, every match and every gap being a piece."""

    regexes: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False  # a piece that is a token is that token, whatever the merges say
    add_bos: bool = False


# By tokenizer.ggml.pre. "default" is llama.cpp's rule for files that name none.
_PRE = {
    "default": _Pre((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _Pre((_GPT2,)),
    "smollm": _Pre((r"\p{N}", _GPT2)),
    "llama-bpe": _Pre((_LLAMA3,), ignore_merges=True, add_bos=True),
    "dbrx": _Pre((_LLAMA3,)),
    "qwen2": _Pre((_QWEN2,), nfc=True),
    "gpt-4o": _Pre((_O200K,)),
}
_PRE |= dict.fromkeys(("llama3", "llama-v3"), _PRE["llama-bpe"])
_PRE |= dict.fromkeys(("starcoder", "refact", "command-r"), _PRE["smollm"])
_PRE["deepseek-r1-qwen"] = _PRE["qwen2"]

# Texts of tokens that end a turn; a file often names one of several as its end of sequence.
_END_OF_TURN = ("<|endoftext|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>")

_PHI3_KEEP_SPACE = ("<unk>", "<s>", "<|endoftext|>")

_SPECIAL_KEYS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


class GgufTokenizer:
    """The ``tokenizer.*`` values of a GGUF file. Raises BlinkError, naming ``path``, for what is unsupported."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path, self._metadata = path, metadata
        self.tokens: list[str] = self._get("tokens", list, None)
        self.types: list[int] = self._get("token_type", list, [NORMAL] * len(self.tokens))
        self.model: str = self._get("model", str, None)
        if len(self.types) != len(self.tokens) or not all(isinstance(t, str) for t in self.tokens):
            raise self._unusable("tokenizer.ggml.token_type does not describe tokenizer.ggml.tokens")
        self.special_ids = {name: self._token_id(f"{key}_token_id") for name, key in _SPECIAL_KEYS.items()}
        if self.model == "gpt2":
            pre = self._get("pre", str, "default")
            if pre not in _PRE:
                raise self._unusable(f"tokenizer.ggml.pre is {pre!r}, not one of {', '.join(sorted(_PRE))}")
            self._pre = _PRE[pre]
            self.add_bos = self._get("add_bos_token", bool, self._pre.add_bos)
            self.tokenizer = self._byte_level()
        elif self.model == "llama":
            self.add_bos = self._get("add_bos_token", bool, True)
            self.tokenizer = self._sentencepiece()
        else:
            raise self._unusable(f"tokenizer.ggml.model is {self.model!r}, not gpt2 or llama")
        self.add_eos = self._get("add_eos_token", bool, False)
        self._add_special_tokens()

    def eos_ids(self) -> list[int]:
        """Tokens that end a generation, in ascending order."""
        named = {self._token_id(f"{key}_token_id") for key in ("eos", "eot", "eom")} - {None}
        by_text = {
            i
            for i, (t, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if t in _END_OF_TURN and kind in (CONTROL, USER_DEFINED)
        }
        return sorted(by_text | {i for i in named if i is not None})

    def files(self) -> dict[str, str]:
        """Contents of tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja."""
        special = {name: self.tokens[i] for name, i in self.special_ids.items() if i is not None}
        config = special | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self.add_bos,
            "add_eos_token": self.add_eos,
            "clean_up_tokenization_spaces": False,
        }
        out = {
            "tokenizer.json": self.tokenizer.to_str(pretty=False),
            "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False) + "\n",
            "special_tokens_map.json": json.dumps(special, indent=2, ensure_ascii=False) + "\n",
        }
        template = self._metadata.get("tokenizer.chat_template")
        if isinstance(template, str):
            out["chat_template.jinja"] = template
        return out

    def _byte_level(self) -> Tokenizer:
        vocab = {t: i for i, t in enumerate(self.tokens) if self.types[i] != UNUSED}
        merges = []
        for merge in self._get("merges", list, None):
            left, space, right = str(merge).partition(" ")
            if not space or left not in vocab or right not in vocab or left + right not in vocab:
                raise self._unusable(f"the merge {merge!r} does not join two tokens to a third")
            merges.append((left, right))
        tokenizer = Tokenizer(BPE(vocab, merges, ignore_merges=self._pre.ignore_merges))
        if self._pre.nfc:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(r), "isolated") for r in self._pre.regexes]
            + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentencepiece(self) -> Tokenizer:
        scores = self._get("scores", list, None)
        if len(scores) != len(self.tokens):
            raise self._unusable("tokenizer.ggml.scores does not describe tokenizer.ggml.tokens")
        vocab = {t: i for i, t in enumerate(self.tokens) if self.types[i] != UNUSED}
        # SentencePiece joins the neighbours whose piece scores highest: every way to split a piece is a merge.
        normal = {t: i for t, i in vocab.items() if self.types[i] == NORMAL}
        merges = [
            (t[:cut], t[cut:])
            for t, _ in sorted(normal.items(), key=lambda item: (-scores[item[1]], item[1]))
            for cut in range(1, len(t))
            if t[:cut] in normal and t[cut:] in normal
        ]
        unk = self.special_ids["unk_token"]
        tokenizer = Tokenizer(
            BPE(
                vocab,
                merges,
                unk_token=self.tokens[unk] if unk is not None else None,
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        prefix = self._get("add_space_prefix", bool, True)
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁")] * prefix + [normalizers.Replace(" ", "▁")]
        )
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
            + [decoders.Strip(" ", 1, 0)] * prefix
        )
        return tokenizer

    def _add_special_tokens(self) -> None:
        named = {i for i in self.special_ids.values() if i is not None}  # old files have no types
        phi3 = any(n in str(self._metadata.get("general.name", "")).lower() for n in ("phi-3", "phi3"))
        # In id order, so that a token which is already in the vocabulary keeps its id.
        self.tokenizer.add_tokens(
            [
                AddedToken(
                    token,
                    special=kind != USER_DEFINED,
                    normalized=False,
                    # Phi-3's tokens swallow the white space after them, and GGUF has no field for that.
                    rstrip=phi3 and self.model == "llama" and token not in _PHI3_KEEP_SPACE,
                )
                for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
                if token and (kind in (UNKNOWN, CONTROL, USER_DEFINED) or i in named)
            ]
        )
        ends = [(self.special_ids["bos_token"], self.add_bos), (self.special_ids["eos_token"], self.add_eos)]
        (bos, with_bos), (eos, with_eos) = ends
        before = [self.tokens[bos]] if with_bos and bos is not None else []
        after = [self.tokens[eos]] if with_eos and eos is not None else []
        if before or after:
            self.tokenizer.post_processor = processors.TemplateProcessing(
                single=[*before, "$A", *after],
                pair=[*before, "$A", *after, *(f"{t}:1" for t in before), "$B:1", *(f"{t}:1" for t in after)],
                special_tokens=[(t, self.tokens.index(t)) for t in dict.fromkeys(before + after)],
            )

    def _get(self, key: str, kind: type, default: Any) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, kind):
            raise self._unusable(f"tokenizer.ggml.{key} is {'missing' if value is None else repr(value)[:80]}")
        return value

    def _token_id(self, key: str) -> int | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is not None and not (isinstance(value, int) and 0 <= value < len(self.tokens)):
            raise self._unusable(f"tokenizer.ggml.{key} is {value!r}, and there are {len(self.tokens)} tokens")
        return value

    def _unusable(self, what: str) -> BlinkError:
        return BlinkError(f"{self.path}: {what}", "use the model's HuggingFace folder instead of this GGUF file")
