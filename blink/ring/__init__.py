"""The ring: its layout, a worker's operations on it, and the transports that carry them."""
