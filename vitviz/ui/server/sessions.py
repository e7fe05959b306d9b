"""What the server remembers of open pages, shared fairly between visitors."""

from __future__ import annotations

from collections import Counter, OrderedDict

from gradio.state_holder import StateHolder

# Owners are remembered for more sessions than there are, since a session begins after its first request.
OWNERS_PER_SESSION = 4


class Sessions(StateHolder):
    """Gradio's sessions. When there are too many, whoever holds the most loses the one that was used least lately.

    Calls of programs have sessions that nobody comes back to. They leave first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owners: OrderedDict[str, str] = OrderedDict()

    def claim(self, session: str, visitor: str) -> None:
        """Note who uses a session; who was first keeps it."""
        with self.lock:
            self._owners.setdefault(session, visitor)
            self._owners.move_to_end(session)
            while len(self._owners) > OWNERS_PER_SESSION * self.capacity:
                # A session that is kept keeps its owner.
                unused = next((each for each in self._owners if each not in self.session_data), None)
                if unused is None:
                    break
                del self._owners[unused]

    def owner(self, session: str) -> str | None:
        """Who uses a session; None where nobody claimed it."""
        return self._owners.get(session)

    def forget_call(self, event: str) -> None:
        """Let the session of a call go, which has the name of its event; a page's stays."""
        with self.lock:
            if event not in self._owners:
                self._remove(event)

    def update(self, session_id: str) -> None:
        with self.lock:
            if session_id in self.session_data:
                self.session_data.move_to_end(session_id)
            while len(self.session_data) > self.capacity:
                self._remove(self._next_to_leave(session_id))

    def _next_to_leave(self, newest: str) -> str:
        held = Counter(self._owners.get(each) for each in self.session_data)
        others = [each for each in self.session_data if each != newest]
        unowned = next((each for each in others if each not in self._owners), None)
        if unowned is not None:
            return unowned
        most = max(held[self._owners[each]] for each in others)
        return next(each for each in others if held[self._owners[each]] == most)

    def _remove(self, session: str) -> None:
        self.session_data.pop(session, None)
        self.time_last_used.pop(session, None)
        self._owners.pop(session, None)
