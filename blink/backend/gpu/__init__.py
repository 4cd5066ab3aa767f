"""The scheduler on a GPU: its memory, the ring's, and the two drivers that turn it without the host."""
