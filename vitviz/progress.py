"""The progress of a long computation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How many steps are ``done`` of the ``total``; the function that reports it defines a step."""

    done: int
    total: int
