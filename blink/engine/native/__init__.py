"""The engine for NVIDIA GPUs: own kernels, and cuBLASLt for long prompts; see docs/engines.md."""

from blink.engine.native.memory import needs as needs
