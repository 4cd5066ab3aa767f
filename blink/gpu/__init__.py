"""What Blink needs of a CUDA device: memory, compiled kernels, graphs. Knows nothing of rings or models."""
