"""Modules of other packages, or the user's own, as networks whose attention is captured while they run.

``interception`` observes the calls of attention, ``codes`` and ``sequence`` interpret them, ``verification`` compares
them with what the module computed, and ``recording`` turns them into traces.
"""

from vitviz.models.capture.facts import CAPTURED_MODULE, NO_STREAM, ModuleConfig, ModuleFacts

__all__ = ["CAPTURED_MODULE", "NO_STREAM", "ModuleConfig", "ModuleFacts"]
