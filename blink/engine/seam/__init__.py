"""What every engine and its driver agree on: the step buffers, and what an engine offers."""
