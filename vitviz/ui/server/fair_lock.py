"""Fair turns: one visitor after the other, so that many requests of one delay only their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gradio.context import LocalContext

from vitviz.ui.server.hosts import visitor_key

# The interval at which a waiting request may give up.
POLL_SECONDS = 0.5


def current_visitor() -> str:
    """The visitor of the current request; empty outside of requests."""
    request = LocalContext.request.get(None)
    client = getattr(request, "client", None)
    return visitor_key(client.host) if client is not None else ""


@dataclass(frozen=True, eq=False)
class Ticket:
    """A place in the order.

    Args:
        visitor: who has it.
        round: a visitor has at most one turn in each.
    """

    visitor: str
    round: int


class FairOrder:
    """Tickets in rounds of one per visitor, and by arrival within a round.

    This is fair queueing (Demers, Keshav and Shenker 1989, "Analysis and Simulation of a Fair Queueing Algorithm") with
    turns in place of bytes.
    """

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def join(self, visitor: str) -> Ticket:
        """A new ticket of a visitor."""
        rounds = [ticket.round for ticket in self._tickets if ticket.visitor == visitor]
        current_round = self._tickets[0].round if self._tickets else 0
        ticket = Ticket(visitor, max(rounds) + 1 if rounds else current_round)
        later = (index for index, other in enumerate(self._tickets) if other.round > ticket.round)
        self._tickets.insert(next(later, len(self._tickets)), ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket."""
        self._tickets.remove(ticket)

    def before(self, ticket: Ticket) -> int:
        """The number of tickets before this one."""
        return self._tickets.index(ticket)


class FairLock:
    """A lock whose turns follow a :class:`FairOrder`. Safe between threads."""

    def __init__(self) -> None:
        self._order = FairOrder()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """The number of those who wait or hold the lock."""
        return len(self._order)

    @contextmanager
    def turn(self, waiting: Callable[[int], None] | None = None) -> Iterator[None]:
        """Wait for a turn and hold it.

        Args:
            waiting: receives the number of those before this one, at once and from time to time; an exception that it
                raises gives up the place.
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
                    self._changed.wait(POLL_SECONDS)
                    before = self._order.before(ticket)
            if not before:
                return
            # Outside the lock, so that nobody waits for the callback.
            if waiting is not None:
                waiting(before)
            reported = before
