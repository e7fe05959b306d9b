"""An open page as the server sees it: it sends requests to ``Runs`` and gets answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from vitviz import Model
from vitviz.ui.runs import Runs
from vitviz.ui.state import PageState, View

Make = Callable[..., Model]
PAGE, OTHER_PAGE = "a" * 22, "b" * 22
STATE: Any = PageState((View(),)).to_json()


class Visit:
    """An open page."""

    def __init__(self, runs: Runs, page: str = PAGE, session: str = "anna") -> None:
        self.runs, self.page, self.session, self.number = runs, page, session, 0
        self.answers = runs.answers()

    def run(self, kind: str, **request: Any) -> dict[str, Any]:
        """Send the next request of the page, and return the answer."""
        self.number = number = self.number + 1
        reply = self.runs.answer({"page": self.page, "number": number, "kind": kind, **request}, self.session)
        assert (reply["page"], reply["number"], reply["kind"]) == (self.page, number, kind)
        json.dumps(reply, allow_nan=False)
        return reply

    def ask(self, function: str, **request: Any) -> dict[str, Any]:
        answer = self.answers[function](request)
        json.dumps(answer, allow_nan=False)
        return answer
