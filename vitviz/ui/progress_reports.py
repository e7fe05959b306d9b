"""Progress reports for a waiting page."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vitviz.progress import DownloadProgress


class ProgressReport(NamedTuple):
    """A sentence for the page, and how much is done: ``done`` of ``total`` layers, maps or frames."""

    text: str
    done: int = 0
    total: int = 1


Step = ProgressReport | DownloadProgress
Report = Callable[[Step], None]
"""Receives progress; an exception that it raises ends the request."""


class RunEnded(Exception):
    """The visitor stopped the request, sent another one, or left."""


class ExpiredError(Exception):
    """The analysis has left the cache."""


def no_report(step: Step) -> None:
    """A :data:`Report` for callers that show no progress."""
