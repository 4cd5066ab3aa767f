"""The float32 engine on a CPU: the embedded default, and the oracle of the others."""

from blink.engine.reference.memory import needs as needs
