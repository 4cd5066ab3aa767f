"""The figures of the documentation, drawn from what they show. `make generate` writes them, `make lint` compares."""

from docs.figures import fleet, request_road, ring_memory


def figures() -> dict[str, str]:
    """File name → text of every figure."""
    drawn = {"fleet": fleet.draw(), "request-road": request_road.draw(), "ring-memory": ring_memory.draw()}
    return {f"docs/figures/{name}.svg": svg for name, svg in drawn.items()}
