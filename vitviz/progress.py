"""How far a long computation is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """So many parts are ``done`` of the ``total``; what a part is, the function says that reports it."""

    done: int
    total: int
