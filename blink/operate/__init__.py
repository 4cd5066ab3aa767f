"""The operator's tools: status, wait, drain, smoke checks, support bundles."""
