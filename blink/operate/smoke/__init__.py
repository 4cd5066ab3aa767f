"""Checks of a running appliance, made as its users would make them."""
