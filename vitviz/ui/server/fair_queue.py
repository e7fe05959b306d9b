"""Gradio's queue, in which no visitor takes all places: those who wait behind it have turns by turns, too."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from vitviz.ui.server.hosts import visitor_key

# Of the events of one kind that may be under way at once, one visitor's are at most one in so many.
VISITORS_AT_ONCE = 3
# How often a queue looks whether there is an event, or word of how far one is. Gradio looks a thousand times a second,
# which takes a server that nobody asks anything a thirtieth of a processor.
LOOK_EVERY_SECONDS, PROGRESS_EVERY_SECONDS = 0.01, 0.05


def share_fairly(queue: Any) -> None:
    """Have a queue begin the events of whoever has the fewest under way first, and of nobody more than their part.

    Gradio begins them in the order in which they came, so that who asks first for a hundred things that wait for their
    turn has all places in which anybody could wait.

    Args:
        queue: of :class:`gradio.Blocks`.
    """
    queue.get_events = lambda: _next_events(queue)
    queue.sleep_when_free, queue.progress_update_sleep_when_free = LOOK_EVERY_SECONDS, PROGRESS_EVERY_SECONDS


def _next_events(queue: Any) -> tuple[list[Any], bool, str] | None:
    """What Gradio's method of this name gives: the events to begin, whether they are a batch, and their kind."""
    for kind, waiting in queue.event_queue_per_concurrency_id.items():
        limit = waiting.concurrency_limit
        if not waiting.queue or (limit is not None and waiting.current_concurrency >= limit):
            continue
        running = Counter(
            _visitor(event) for job in queue.active_jobs if job for event in job if event.concurrency_id == kind
        )
        most = math.inf if limit is None else math.ceil(limit / VISITORS_AT_ONCE)
        # The first of those who have equally few.
        event = min(waiting.queue, key=lambda each: running[_visitor(each)])
        if running[_visitor(event)] < most:
            waiting.queue.remove(event)
            return [event], False, kind
    return None


def _visitor(event: Any) -> str:
    client = event.request.client
    return visitor_key(client.host) if client is not None else ""
