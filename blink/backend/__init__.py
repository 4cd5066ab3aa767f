"""The host process: allocate, load, serve, stop."""
