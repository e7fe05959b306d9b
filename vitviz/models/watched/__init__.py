"""Modules of other packages, or the user's own, as networks whose attention is watched while they run.

``recorder`` reports each operation of a pass below autograd, ``finder`` knows which of them are attention, ``program``
runs them again with other pictures or results, and ``reader`` passes their calls on; ``replay`` is all of it. Proofs of
what the calls mean are in ``codes``, ``sequence`` and ``reading``, which ``verification`` asks, and in ``several`` for
pictures that run together. ``stream`` finds the tokens between layers, ``recording`` makes traces, and ``network``
answers.
"""

from vitviz.models.watched.module_config import NO_STREAM, WATCHED_MODULE, ModuleConfig

__all__ = ["NO_STREAM", "WATCHED_MODULE", "ModuleConfig"]
