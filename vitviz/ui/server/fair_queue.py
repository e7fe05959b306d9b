"""Gradio's queue, made fair: no visitor takes all places."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from vitviz.ui.server.hosts import visitor_key
from vitviz.ui.server.line import first_in_line

# One visitor's share of the events of a kind that may run at once is a third.
VISITORS_AT_ONCE = 3
# The intervals at which a queue polls for events and progress. Gradio polls a thousand times a second, which takes an
# idle server a thirtieth of a processor.
EVENT_SECONDS, PROGRESS_SECONDS = 0.01, 0.05


def share_fairly(queue: Any) -> None:
    """Make a queue start the event of the visitor with the fewest running ones, up to each visitor's share.

    Gradio starts events by arrival, so that one visitor with a hundred waiting requests takes all places.

    Args:
        queue: of :class:`gradio.Blocks`.
    """
    queue.get_events = lambda: _next_events(queue)
    queue.sleep_when_free, queue.progress_update_sleep_when_free = EVENT_SECONDS, PROGRESS_SECONDS


def _next_events(queue: Any) -> tuple[list[Any], bool, str] | None:
    """Replaces Gradio's ``get_events``: the events to start, whether they are a batch, and their kind."""
    for kind, waiting in queue.event_queue_per_concurrency_id.items():
        limit = waiting.concurrency_limit
        if not waiting.queue or (limit is not None and waiting.current_concurrency >= limit):
            continue
        running = Counter(
            visitor_of(event) for job in queue.active_jobs if job for event in job if event.concurrency_id == kind
        )
        share = math.inf if limit is None else math.ceil(limit / VISITORS_AT_ONCE)
        index = first_in_line([visitor_of(event) for event in waiting.queue], running, share)
        if index is not None:
            return [waiting.queue.pop(index)], False, kind
    return None


def visitor_of(event: Any) -> str:
    """Who sent an event."""
    client = event.request.client
    return visitor_key(client.host) if client is not None else ""
