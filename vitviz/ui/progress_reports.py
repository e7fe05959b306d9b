"""Progress reports for a waiting page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from vitviz.progress import DownloadProgress, Progress

# So much of a computation is done before the time left is estimated.
CERTAIN_SHARE = 0.03


class ProgressReport(NamedTuple):
    """A sentence for the page, and how much is done: ``done`` of ``total`` layers, maps or frames.

    ``unfinished`` is what the reply already has.
    """

    text: str
    done: int = 0
    total: int = 1
    unfinished: dict[str, Any] | None = None


Step = ProgressReport | DownloadProgress
Report = Callable[[Step], None]
"""Receives progress; an exception that it raises ends the request."""


class RunEnded(Exception):
    """The visitor stopped the request, sent another one, or left."""


class ExpiredError(Exception):
    """The cache has no analysis of this id; the message says so."""


def under_title(
    title: str, report: Report, unfinished: Callable[[], dict[str, Any] | None] = lambda: None
) -> Callable[[Progress], None]:
    """Reports how much of a computation is done, under a title, with the time left as soon as that can be told."""
    begun = time.monotonic()

    def report_done(progress: Progress) -> None:
        left = (time.monotonic() - begun) * (progress.total / max(progress.done, 1) - 1)
        words = f"{5 * math.ceil(left / 5)} s" if left < 90 else f"{math.ceil(left / 60)} min"
        is_known = progress.done > CERTAIN_SHARE * progress.total and left > 1
        text = f"{title}: about {words} left" if is_known else title
        report(ProgressReport(text, progress.done, progress.total, unfinished()))

    return report_done


def no_report(step: Step) -> None:
    """A :data:`Report` for callers that show no progress."""
