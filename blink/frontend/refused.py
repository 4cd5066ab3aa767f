"""Fields that are known and not implemented: a request that uses one gets a 400 naming it.

A field is *used* where its value is neither empty (null, false, "", [], {}) nor one of the neutral values below, which
mean the same as leaving it out.
"""

from __future__ import annotations

from collections.abc import Mapping

from blink.frontend.errors import unsupported

REFUSED: dict[str, tuple[object, ...]] = {
    # OpenAI
    "response_format": ({"type": "text"},),
    "functions": (),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "store": (),
    "suffix": (),
    "echo": (),  # chat only: CompletionBody has it
    "best_of": (1,),  # chat only
    # vLLM, SGLang and llama.cpp: what would change the output
    "allowed_token_ids": (),
    "bad_words": (),
    "chat_template": (),
    "continue_final_message": (),
    "documents": (),
    "early_stopping": (),
    "ebnf": (),
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "json_schema": (),
    "length_penalty": (1,),
    "logits_processors": (),
    "lora_path": (),
    "mirostat": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "regex": (),
    "return_token_ids": (),
    "return_tokens_as_token_ids": (),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (),
}

_EMPTY: tuple[object, ...] = (None, False, "", [], {})


def _means(value: object, neutral: tuple[object, ...]) -> bool:
    # 0 == False and 1 == True in Python, but not here
    return any(value == n and isinstance(value, bool) == isinstance(n, bool) for n in neutral)


def refuse_unimplemented(extra: Mapping[str, object]) -> None:
    """Raise ApiError for the first field of ``extra`` that is in REFUSED and used."""
    for name, value in extra.items():
        if name in REFUSED and not _means(value, _EMPTY) and not _means(value, REFUSED[name]):
            raise unsupported(name)
