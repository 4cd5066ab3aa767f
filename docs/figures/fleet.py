"""A fleet and its gateways, as inventory/example-fleet has it: who sends requests where, who changes, who watches."""

from __future__ import annotations

from docs.figures.draw import Figure

# Name of an appliance, what is said of it, where its card is.
_APPLIANCES = (
    ("ap001", "", "in the GPU's server"),
    ("ap002", "", "in the GPU's server"),
    ("ap003", "canary", "in the GPU's server"),
    ("ap004", "remote_dpu", "in carrier1"),
)
_BUS = 434  # where the gateways' ways to the appliances run together
_GATEWAYS = (190, 300)  # upper edges


def draw() -> str:
    """The SVG file."""
    fig = Figure(1100, 540, "A fleet: clients, gateways, appliances, and who changes and watches them", "fleet.py")
    fig.text(24, 32, "A fleet and its gateways", "title")
    fig.box((180, 56, 904, 466), "machine", "inventory/example-fleet")
    fig.box((24, 90, 116, 68), "outside", "Operator", ["Ansible", "over SSH"])
    fig.arrow((140, 124), (180, 124), dashed=True)
    fig.box((24, 250, 116, 68), "outside", "Clients", ["HTTPS"])
    for i, y in enumerate(_GATEWAYS):
        lines = ["HAProxy: where fewest", "requests are in flight;", "asks GET /ready"]
        fig.box((200, y, 190, 90), "frontend", f"gateway{i + 1}", lines)
        fig.arrow((140, 284), (200, y + 45))
        fig.trunk((390, y + 45), (_BUS, y + 45))
    fig.box((200, 410, 190, 90), "outside", "watch1", ["Prometheus: metrics of", "frontends and gateways,", "alerts"])
    tops = [84 + 108 * i for i in range(len(_APPLIANCES))]
    fig.trunk((_BUS, tops[0] + 48), (_BUS, tops[-1] + 48))
    for y, (name, note, card) in zip(tops, _APPLIANCES, strict=True):
        fig.box((470, y, 596, 96), "ground", name, [note] if note else [])
        fig.box((580, y + 10, 190, 76), "frontend", "DPU", ["blink frontend", card])
        fig.box((860, y + 10, 190, 76), "scheduler", "GPU host", ["blink backend, blink ringd", "the ring's memory"])
        fig.arrow((770, y + 48), (860, y + 48), both=True)
        fig.text(815, y + 40, "RDMA", "small", "middle")
        fig.arrow((_BUS, y + 48), (470, y + 48))
    return fig.svg()
