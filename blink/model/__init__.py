"""Checkpoints from a folder, a hub, a GGUF file or a package; tokenizers; chat templates."""
