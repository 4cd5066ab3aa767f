"""The seam between scheduler and engine: the fixed buffers of one step.

The scheduler fills every buffer but the outputs and says which graph to run; the engine runs it, fills the outputs and
stores ``control.done = control.step`` last. Buffers are allocated once and never move, so a captured graph may hold
their addresses. The same description makes NumPy arrays for the reference engine and the C header for the scheduler.

A step is a list of *rows*. Row r belongs to lane ``row_lane[r]`` and feeds tokens
``token_ids[row_start[r]:row_start[r + 1]]`` at consecutive ``positions``; keys and values of token t go to KV entry
``kv_index[t]`` (page * page_tokens + offset). The row attends to the first ``row_kv_len[r]`` positions of its lane
through ``block_table[lane]``. A decode row has one token. Where ``row_sample[r]`` is 1 the engine samples the token
that follows the row's last one and leaves it in ``out_token[r]`` (-1: it could not).

What penalties count is the engine's own: it follows from the tokens fed to a lane at positions 0, 1, …, of which those
below ``prompt_len`` are the prompt. A lane whose position 0 is fed again starts over.
"""

from __future__ import annotations

import enum

from blink import limits
from blink.cstruct import Buffer, Buffers, Field, Struct
from blink.ring.layout import LOGPROB

MAX_BUCKETS, MAX_EOS, MAX_STOP, MAX_BIAS = limits.BUCKETS, limits.EOS, limits.STOP, limits.BIAS
MAX_REQUEST_STOP = MAX_STOP - MAX_EOS
"""Stop ids of a request: a lane's list has room for the model's own besides."""


class Kind(enum.IntEnum):
    """What a decision asks the driver to do."""

    IDLE = 0
    PREFILL = 1
    DECODE = 2
    RELAUNCH = 3  # end this execution and start a fresh one: the launch window is used up
    STOP = 4


GRAPH_ORDER = (Kind.DECODE, Kind.PREFILL)
"""How a model's graphs are numbered: by kind in this order, within a kind by bucket."""


class Control(enum.IntEnum):
    """What the host asks the scheduler to do, through its control word."""

    RUN = 0
    DRAIN = 1  # finish what runs, refuse what waits, then STOP
    STOP = 2  # end everything now, with ERR_STOPPED


STEP = Struct(
    "StepControl",
    64,
    (
        Field(0x00, "u32", "kind", "see Kind"),
        Field(0x04, "u32", "graph", "index into the decode or prefill buckets"),
        Field(0x08, "u32", "rows"),
        Field(0x0C, "u32", "tokens", "packed tokens of all rows"),
        Field(0x10, "u32", "step", "number of this batch, from 1, wrapping past 0"),
        Field(0x14, "u32", "done", "written by the engine, last: the step it finished"),
        Field(0x18, "u32", "error", "written by the engine: not 0 fails every row of the step"),
    ),
    "control block of a step",
)

LANE = Struct(
    "LaneParams",
    64,
    (
        Field(0x00, "f32", "temperature"),
        Field(0x04, "f32", "top_p"),
        Field(0x08, "f32", "min_p"),
        Field(0x0C, "f32", "frequency"),
        Field(0x10, "f32", "presence"),
        Field(0x14, "f32", "repetition"),
        Field(0x18, "u32", "top_k"),
        Field(0x1C, "u32", "flags", "see ring Flag"),
        Field(0x20, "u64", "seed"),
        Field(0x28, "u32", "prompt_len", "tokens at positions below it are prompt, the others are answer"),
        Field(0x2C, "u32", "min_tokens"),
        Field(0x30, "u32", "lp_n"),
        Field(0x34, "u32", "n_stop", "entries of lane_stop: all ids that end the lane, EOS first unless IGNORE_EOS"),
        Field(0x38, "u32", "n_bias", "entries of lane_bias_ids and lane_bias_values"),
    ),
    "validated sampling parameters of a lane, written when a request is admitted",
)

BATCH = Buffers(
    "Batch",
    (
        Buffer(STEP, "control", (1,)),
        Buffer("i32", "row_lane", ("lanes",)),
        Buffer("i32", "row_start", ("lanes1",), "exclusive prefix sum of the rows' token counts"),
        Buffer("i32", "row_kv_len", ("lanes",), "context of the row after this step's tokens"),
        Buffer("i32", "row_sample", ("lanes",)),
        Buffer("i32", "token_ids", ("tokens",)),
        Buffer("i32", "positions", ("tokens",)),
        Buffer("i32", "kv_index", ("tokens",)),
        Buffer("i32", "block_table", ("lanes", "lane_pages")),
        Buffer(LANE, "lane_params", ("lanes",)),
        Buffer("u32", "lane_stop", ("lanes", MAX_STOP)),
        Buffer("u32", "lane_bias_ids", ("lanes", MAX_BIAS)),
        Buffer("f32", "lane_bias_values", ("lanes", MAX_BIAS)),
        Buffer("i32", "out_token", ("lanes",), "output: by row"),
        Buffer(LOGPROB, "out_logprob", ("lanes",), "output: by row, only where the lane asks for it"),
    ),
    "fixed buffers of a step; dimensions: lanes, lanes1 = lanes + 1, tokens = largest step, lane_pages",
)

SCHED_CONFIG = Struct(
    "SchedConfig",
    0x1080,
    (
        Field(0x000, "u32", "lanes", "rows of the largest decode step"),
        Field(0x004, "u32", "records", "requests held at once: running, paused and waiting for a lane"),
        Field(0x008, "u32", "page_tokens"),
        Field(0x00C, "u32", "pages", "in the KV pool"),
        Field(0x010, "u32", "lane_pages", "columns of the block table"),
        Field(0x014, "u32", "max_context"),
        Field(0x018, "u32", "vocab"),
        Field(0x01C, "u32", "batch_tokens", "packed tokens of the largest step; >= lanes"),
        Field(0x020, "u32", "ext_words", "longest request extension"),
        Field(0x024, "u32", "launch_window", "graph launches per execution of the driver; 0 is unlimited"),
        Field(0x028, "u32", "claims_per_step", "requests copied and validated per step"),
        Field(0x02C, "u32", "torn_ms", "how long a record may stay inconsistent"),
        Field(0x030, "u32", "alive_ms", "how long a partition may stay silent before its requests end; 0 is forever"),
        Field(0x034, "u32", "step_budget_ms", "published as budget_ms before a batch runs"),
        Field(0x038, "u32", "n_decode", "decode buckets, ascending, the last is lanes"),
        Field(0x03C, "u32", "n_prefill", "prefill buckets in packed tokens, ascending, the last is batch_tokens"),
        Field(0x040, "u32", "decode_bucket", "", MAX_BUCKETS),
        Field(0x840, "u32", "prefill_bucket", "", MAX_BUCKETS),
        Field(0x1040, "u32", "n_eos"),
        Field(0x1044, "u32", "eos", "", MAX_EOS),
        Field(0x1064, "u32", "mixed", "whether lanes that decode may have rows in prefill steps"),
    ),
    "configuration of the scheduler",
)

DECISION = Struct(
    "Decision",
    16,
    (
        Field(0x00, "u32", "kind", "see Kind"),
        Field(0x04, "u32", "graph"),
        Field(0x08, "u32", "rows"),
        Field(0x0C, "u32", "tokens"),
    ),
    "what the driver does next",
)


def header_enums() -> dict[str, dict[str, int]]:
    """The constants that the C header carries."""
    return {
        "KIND": {k.name: k.value for k in Kind},
        "GRAPHS": {"FIRST": GRAPH_ORDER[0].value},
        "CONTROL": {c.name: c.value for c in Control},
        "BATCH": {"MAX_BUCKETS": MAX_BUCKETS, "MAX_EOS": MAX_EOS, "MAX_STOP": MAX_STOP, "MAX_BIAS": MAX_BIAS,
                  "MAX_REQUEST_STOP": MAX_REQUEST_STOP, "MAX_LANES": limits.LANES, "MAX_RECORDS": limits.RECORDS,
                  "MAX_CONTEXT": limits.CONTEXT, "MAX_TOKENS": limits.BATCH_TOKENS,
                  "MAX_PAGE_TOKENS": limits.PAGE_TOKENS},
    }  # fmt: skip


PARTS = (STEP, LANE, BATCH, SCHED_CONFIG, DECISION)
