"""A request's road: the eight steps of docs/life-of-a-request.md, and where each happens."""

from __future__ import annotations

from docs.figures.draw import Figure

# Each step's title, as in the page's headings, the folder that does it, and what it does.
STEPS = {
    1: ("Accept", "blink/frontend/", "one POST: checked, limited"),
    2: ("Turn text into tokens", "blink/model/", "template, tokenizer"),
    3: ("Write the request", "blink/ring/", "a slot, extents, a record"),
    4: ("Carry it across", "blink/ring/verbs/", "chain, completion, doorbell"),
    5: ("Claim and plan", "kernels/scheduler/", "lane, pages, the next batch"),
    6: ("Compute a token", "blink/engine/", "one graph: model and sampling"),
    7: ("Publish the token", "kernels/scheduler/", "token, then status"),
    8: ("Read and stream", "blink/frontend/", "text as it is certain"),
}
_W, _H = 240, 68
_DPU, _RING, _GPU = 190, 560, 800  # left edges of the three columns of boxes


def draw() -> str:
    """The SVG file."""
    fig = Figure(1100, 566, "A request's road from the client to the GPU and back, in eight steps", "request_road.py")
    fig.text(24, 32, "A request's road", "title")
    fig.box((24, 90, 96, 440), "outside", "Client")
    fig.box((_DPU - 20, 56, 280, 490), "machine", "DPU: blink frontend")
    fig.box((_RING - 20, 56, 540, 490), "machine", "GPU host: blink backend")
    fig.text(_RING - 10, 96, "With the scheduler on the GPU, no CPU of this machine takes part in these steps.")
    fig.text(_RING - 10, 113, "blink ringd opens the ring's memory to the frontend when it connects.")
    for n, x, y, kind in (
        (1, _DPU, 90, "frontend"), (2, _DPU, 178, "frontend"), (3, _DPU, 266, "frontend"), (4, _DPU, 354, "frontend"),
        (5, _GPU, 280, "scheduler"), (6, _GPU, 371, "engine"), (7, _GPU, 462, "scheduler"), (8, _DPU, 462, "frontend"),
    ):  # fmt: skip
        title, folder, does = STEPS[n]
        fig.box((x, y, _W, _H), kind, f"{n}  {title}", [f"`{folder}`", does])
    worker, scheduler = (
        ["prompt, record", "`commit, cancel`", "`db, alive`"],
        ["tokens", "`w1, w2, w0`", "`pub_seq, beat`"],
    )
    fig.box((_RING, 310, 170, 106), "ring", "Ring: F", ["the worker writes", *worker])
    fig.box((_RING, 430, 170, 106), "ring", "Ring: G", ["the scheduler writes", *scheduler])
    for y in (158, 246, 334):
        fig.arrow((310, y), (310, y + 20))
    fig.arrow((120, 124), (_DPU, 124))
    fig.text(145, 118, "POST", "small", "middle")
    fig.arrow((430, 388), (_RING, 388))
    fig.text(495, 381, "RDMA WRITE", "small", "middle")
    fig.arrow((730, 330), (_GPU, 330))
    fig.arrow((920, 348), (920, 371))
    fig.arrow((920, 439), (920, 462))
    fig.arrow((1040, 496), (1062, 496), (1062, 314), (1040, 314))
    fig.text(1062, 270, "again for every token", "small", "end")
    fig.arrow((_GPU, 496), (730, 496))
    fig.arrow((_RING, 496), (430, 496))
    fig.text(495, 489, "RDMA READ", "small", "middle")
    fig.arrow((_DPU, 496), (120, 496))
    fig.text(145, 490, "SSE", "small", "middle")
    return fig.svg()
