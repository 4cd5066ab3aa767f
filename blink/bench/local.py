"""``blink bench local``: one stream beside several, over HTTP, and the engine alone; with what it ran on."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from blink.backend.setup import Setup
from blink.bench.engine_only import decode_rate
from blink.bench.streams import Load, measure
from blink.config import ApplianceConfig
from blink.errors import BlinkError
from blink.instruments import machine
from blink.model.prepared import PreparedModel
from blink.output import write_json

STREAMS = 8
PROMPT_TOKENS = 64
MAX_TOKENS = 64
ENGINE_STEPS = 32
TEXT = "The scheduler claims a slot, feeds the prompt, and publishes one token after the other. "
PERCENTILES = (50, 95, 99)


def prompts(model: PreparedModel, count: int) -> list[list[int]]:
    """``count`` different prompts of PROMPT_TOKENS tokens each."""
    tokens = model.tokenizer().encode(TEXT * PROMPT_TOKENS, add_special_tokens=False)
    if len(tokens) < PROMPT_TOKENS + count:
        raise BlinkError(f"{model.path}: its tokenizer makes too little of the benchmark's text", "use a trained one")
    return [tokens[i : i + PROMPT_TOKENS] for i in range(count)]


def run(config: ApplianceConfig, *, config_path: Path, json_path: Path | None) -> int:
    """Measure the running appliance, then the engine alone in this process, and print a table."""
    if config.engine.max_context < PROMPT_TOKENS + MAX_TOKENS:
        raise BlinkError(f"engine.max_context: {config.engine.max_context} is too short for the benchmark",
                         f"set it to {PROMPT_TOKENS + MAX_TOKENS} or more")  # fmt: skip
    setup = Setup(config)
    model = setup.model
    texts = prompts(model, STREAMS)
    rows = min(STREAMS, config.engine.lanes)
    document: dict[str, Any] = {
        "command": shlex.join(["blink", *sys.argv[1:]]),
        "config": str(config_path),
        "model": f"{config.model.served_name} {model.fingerprint.hex()[:16]}",
        "engine": config.engine.model_dump(mode="json"),
        "hardware": machine.hardware(),
        "versions": machine.versions(),
        "warning": machine.busy_warning(),
        "prompt_tokens": PROMPT_TOKENS,
        "max_tokens": MAX_TOKENS,
    }
    # The first request pays for connections and caches that no later one pays for.
    measure(config, texts[:1], concurrency=1, max_tokens=8)
    loads = [measure(config, texts, concurrency=n, max_tokens=MAX_TOKENS) for n in (1, rows)]
    document["http"] = [_summary(load) for load in loads]
    document["engine_only"] = [
        {
            "rows": n,
            "decode_tokens_per_s": round(decode_rate(setup, rows=n, context=PROMPT_TOKENS, steps=ENGINE_STEPS), 2),
        }
        for n in (1, rows)
        if not config.engine.on_gpu  # the running appliance has the GPU's memory; `blink bench engine` measures it
    ]
    if str(json_path) != "-":
        print(render(document))
    if json_path is not None:
        write_json(json_path, document)
    return 0


def _summary(load: Load) -> dict[str, Any]:
    return {
        "streams": load.concurrency,
        "requests": len(load.streams),
        "decode_tokens_per_s": round(load.decode_rate, 2),
        "ttft_ms": {f"p{q}": round(load.percentile("ttft", q) * 1000, 1) for q in PERCENTILES},
        "tpot_ms": {f"p{q}": round(load.percentile("tpot", q) * 1000, 1) for q in PERCENTILES},
    }


def render(document: dict[str, Any]) -> str:
    """``document`` as text: the facts, then one line for each load."""
    lines = [f"{name:<14}{document[name]}" for name in ("command", "config", "model")]
    for name in ("engine", "hardware", "versions"):
        lines.append(f"{name:<14}" + ", ".join(f"{k} {v}" for k, v in document[name].items()))
    if document["warning"]:
        lines.append(f"WARNING       {document['warning']}")
    heads = "".join(f"{f'{n} P{q} MS':>13}" for n in ("TTFT", "TPOT") for q in PERCENTILES)
    lines += [
        f"requests of {document['prompt_tokens']} prompt tokens and {document['max_tokens']} answer tokens, greedy",
        "",
        f"{'WHAT':<22}{'DECODE TOK/S':>13}{heads}",
    ]
    for load in document["http"]:
        figures = "".join(f"{v:>13.1f}" for name in ("ttft_ms", "tpot_ms") for v in load[name].values())
        lines.append(f"{_many('http', load['streams'], 'stream')}{load['decode_tokens_per_s']:>13.1f}{figures}")
    for figure in document["engine_only"]:
        lines.append(f"{_many('engine', figure['rows'], 'row')}{figure['decode_tokens_per_s']:>13.1f}")
    return "\n".join(lines)


def _many(where: str, n: int, what: str) -> str:
    return f"{where}, {n} {what}{'s' if n != 1 else ''}".ljust(22)
