"""An engine without a model, for measurements and tests of everything around engines."""
