"""The sessions of open pages, shared fairly between visitors."""

from __future__ import annotations

from collections import Counter, OrderedDict

from gradio.state_holder import StateHolder

# Owners are remembered for more sessions than there are, since a session begins after its first request.
OWNERS_PER_SESSION = 4


class Sessions(StateHolder):
    """Gradio's sessions. Above the capacity, the visitor with the most loses the least recently used one.

    Sessions of programs' calls, which are never used again, leave first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owners: OrderedDict[str, str] = OrderedDict()

    def claim(self, session: str, visitor: str) -> None:
        """Record the first visitor who uses a session."""
        with self.lock:
            self._owners.setdefault(session, visitor)
            self._owners.move_to_end(session)
            while len(self._owners) > OWNERS_PER_SESSION * self.capacity:
                # A live session keeps its owner.
                unused = next((name for name in self._owners if name not in self.session_data), None)
                if unused is None:
                    break
                del self._owners[unused]

    def owner(self, session: str) -> str | None:
        """The visitor who claimed a session, or None."""
        return self._owners.get(session)

    def forget_call(self, event: str) -> None:
        """Remove the session of a call, which has the name of its event; a page's stays."""
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
        counts = Counter(self._owners.get(name) for name in self.session_data)
        older = [name for name in self.session_data if name != newest]
        unowned = next((name for name in older if name not in self._owners), None)
        # max returns the first, least recently used of several.
        return unowned if unowned is not None else max(older, key=lambda name: counts[self._owners[name]])

    def _remove(self, session: str) -> None:
        self.session_data.pop(session, None)
        self.time_last_used.pop(session, None)
        self._owners.pop(session, None)
