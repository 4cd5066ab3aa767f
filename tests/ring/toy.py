"""A model whose answers a test can predict: each token follows from the one before it and its position."""

from __future__ import annotations

from blink.engine.seam.buffers import BatchBuffers


def next_token(previous: int, position: int, vocab: int) -> int:
    """The test model: the token at ``position``, from the one before it."""
    return (previous * 31 + position * 7 + 3) % vocab


def expected_tokens(prompt: list[int], count: int, vocab: int) -> list[int]:
    """What the test model answers to ``prompt``."""
    out: list[int] = []
    last = prompt[-1]
    for i in range(count):
        last = next_token(last, len(prompt) + i, vocab)
        out.append(last)
    return out


def expected_logprob(token: int, lp_n: int, vocab: int) -> tuple[float, list[tuple[int, float]]]:
    """The record the test model leaves beside ``token``."""
    return -float(token), [((token + i) % vocab, -float(token) - i) for i in range(lp_n)]


def run_model(buffers: BatchBuffers, vocab: int) -> None:
    """The engine: run the step that stands in ``buffers``."""
    b = buffers
    for row in range(int(b.control["rows"][0])):
        last = int(b.row_start[row + 1]) - 1
        if not b.row_sample[row]:
            continue
        token = next_token(int(b.token_ids[last]), int(b.positions[last]) + 1, vocab)
        b.out_token[row] = token
        lp_n = int(b.lane_params["lp_n"][b.row_lane[row]])
        record = b.out_logprob[row]
        record["chosen"], top = expected_logprob(token, lp_n, vocab)
        record["n"] = lp_n
        record["ids"][:lp_n] = [t for t, _ in top]
        record["values"][:lp_n] = [v for _, v in top]
    b.control["done"][0] = b.control["step"][0]
