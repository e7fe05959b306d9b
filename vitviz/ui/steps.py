"""What a visitor who waits is told: how far it is, or that it is not there any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vitviz.weights import DownloadProgress


class Step(NamedTuple):
    """How far an analysis is: ``done`` of ``total`` layers, or waiting for others."""

    text: str
    done: int = 0
    total: int = 1


Report = Callable[[Step | DownloadProgress], None]
"""Receives how far something is; an exception that it raises ends it."""


class ExpiredError(Exception):
    """An analysis is not kept any more."""


def waiting(report: Report) -> Callable[[int], None]:
    """Tells how many are before whoever waits for a turn."""
    return lambda before: report(Step(f"Waiting: {before} before this one"))


def waiting_for_memory(report: Report) -> Callable[[], None]:
    """Tells that others have the memory."""
    return lambda: report(Step("Waiting for memory that others use"))


def unheard(state: Step | DownloadProgress) -> None:
    """Nobody asks how far it is."""
