"""The engine for NVIDIA GPUs: own kernels, and cuBLASLt for long prompts; see docs/engines.md."""
