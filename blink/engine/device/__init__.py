"""What every engine on a CUDA device shares: captured graphs, step buffers in device memory."""
