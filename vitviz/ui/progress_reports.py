"""Progress reports for a waiting page."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vitviz.progress import DownloadProgress, Progress


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


def under_title(title: str, report: Report) -> Callable[[Progress], None]:
    """Reports how much of a computation is done, under a title."""
    return lambda progress: report(ProgressReport(title, progress.done, progress.total))


def no_report(step: Step) -> None:
    """A :data:`Report` for callers that show no progress."""
