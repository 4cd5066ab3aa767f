"""Measurements of a running appliance and of its engine."""
