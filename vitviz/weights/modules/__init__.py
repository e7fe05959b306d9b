"""Modules in memory: what they say of themselves, and what is asked for."""

from vitviz.weights.modules.load import load_module

__all__ = ["load_module"]
