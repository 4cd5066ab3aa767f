"""Engines: what fills a step's graph. The seam is :mod:`blink.engine.seam.batch`."""
