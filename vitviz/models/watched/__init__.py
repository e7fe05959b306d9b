"""Modules of other packages, or the user's own, as networks whose attention is watched while they run.

``interception`` observes the calls of attention, ``codes`` and ``sequence`` interpret them, ``verification`` compares
them with what the module computed, and ``recording`` turns them into traces.
"""

from vitviz.models.watched.facts import NO_STREAM, WATCHED_MODULE, ModuleConfig, ModuleFacts

__all__ = ["NO_STREAM", "WATCHED_MODULE", "ModuleConfig", "ModuleFacts"]
