"""Modules of other packages, or the user's own, as networks whose attention is captured while they run.

``interception`` observes the calls of attention, ``codes`` and ``sequence`` interpret them, ``verification`` compares
them with what the module computed, and ``recording`` turns them into traces.
"""

from vitviz.models.capture.facts import NO_STREAM, ModuleConfig, ModuleFacts, is_captured

__all__ = ["NO_STREAM", "ModuleConfig", "ModuleFacts", "is_captured"]
