"""Blink: LLM serving without a host CPU in the steady state."""

__version__ = "0.1.0"
