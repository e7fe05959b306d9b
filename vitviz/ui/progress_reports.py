"""Progress reports for a waiting page."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vitviz.weights import DownloadProgress


class ProgressReport(NamedTuple):
    """A sentence for the page, and how much is done: ``done`` of ``total`` layers, maps or frames."""

    text: str
    done: int = 0
    total: int = 1


Report = Callable[[ProgressReport | DownloadProgress], None]
"""Receives progress; an exception that it raises ends the request."""


class ExpiredError(Exception):
    """The analysis has left the cache."""


def report_queue(report: Report) -> Callable[[int], None]:
    """A callback for :meth:`FairLock.turn`: reports how many requests come first."""
    return lambda before: report(ProgressReport(f"Waiting: {before} before this one"))


def report_memory(report: Report) -> Callable[[], None]:
    """A callback for :meth:`MemoryBudget.share`: reports that others hold the memory."""
    return lambda: report(ProgressReport("Waiting for memory that others use"))


def no_report(step: ProgressReport | DownloadProgress) -> None:
    """A :data:`Report` for callers that show no progress."""
