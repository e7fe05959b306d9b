"""Modules in memory as models: their attributes, and what the user has to state."""

from vitviz.weights.modules.as_model import load_module

__all__ = ["load_module"]
