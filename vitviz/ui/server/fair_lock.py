"""Whose turn it is: one visitor after the other, so that who asks for much waits for themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gradio.context import LocalContext

from vitviz.ui.server.hosts import visitor_key

# Of those that may take long: so many are under way or wait for their turn, each in a thread.
RUNS_LONG: dict[str, Any] = {"concurrency_id": "long", "concurrency_limit": 24}
# So often, who waits is asked whether it still wants to.
ASK_EVERY = 0.5


def current_visitor() -> str:
    """The address of whoever sent the request that is being answered; nothing outside of requests."""
    request = LocalContext.request.get(None)
    client = getattr(request, "client", None)
    return visitor_key(client.host) if client is not None else ""


@dataclass(frozen=True, eq=False)
class Ticket:
    """A place among those who wait.

    Args:
        visitor: whose it is.
        round: every visitor has at most one turn in each.
    """

    visitor: str
    round: int


class FairOrder:
    """Tickets in rounds of one for each visitor; in a round, in the order in which they came.

    This is fair queueing with turns in the place of bytes (Demers, Keshav and Shenker 1989, "Analysis and Simulation
    of a Fair Queueing Algorithm").
    """

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def join(self, visitor: str) -> Ticket:
        """A new ticket of a visitor."""
        own = [ticket.round for ticket in self._tickets if ticket.visitor == visitor]
        current_round = self._tickets[0].round if self._tickets else 0
        ticket = Ticket(visitor, max(own) + 1 if own else current_round)
        later = (place for place, each in enumerate(self._tickets) if each.round > ticket.round)
        self._tickets.insert(next(later, len(self._tickets)), ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give a ticket up, or back."""
        self._tickets.remove(ticket)

    def before(self, ticket: Ticket) -> int:
        """How many come before a ticket."""
        return self._tickets.index(ticket)


class FairLock:
    """One at a time, in a :class:`FairOrder`. Safe between threads."""

    def __init__(self) -> None:
        self._order = FairOrder()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """How many wait or have their turn."""
        return len(self._order)

    @contextmanager
    def turn(self, waiting: Callable[[int], None] | None = None) -> Iterator[None]:
        """Wait for one's turn, and have it.

        Args:
            waiting: receives how many are before this one, at first and now and then; an exception that it raises gives
                the place up.
        """
        visitor = current_visitor()
        with self._changed:
            ticket = self._order.join(visitor)
        try:
            self._wait(ticket, waiting)
            yield
        finally:
            with self._changed:
                self._order.leave(ticket)
                self._changed.notify_all()

    def _wait(self, ticket: Ticket, waiting: Callable[[int], None] | None) -> None:
        reported = -1
        while True:
            with self._changed:
                before = self._order.before(ticket)
                if before and before == reported:
                    self._changed.wait(ASK_EVERY)
                    before = self._order.before(ticket)
            if not before:
                return
            # Told outside of the lock: others need not wait while a message is sent.
            if waiting is not None:
                waiting(before)
            reported = before
