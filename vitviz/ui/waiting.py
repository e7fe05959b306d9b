"""What takes longer than a moment before the page can change: how far it is, and the way to stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr

from vitviz.ui.drawing import notice
from vitviz.ui.jobs import Jobs
from vitviz.ui.workbench import Step
from vitviz.weights import DownloadProgress

ANALYSIS, OPENING, SECOND = "analysis", "opening", "second"
STOPPED = "Stopped. Below is still what was there before."


class Waiting:
    """A line at the lower edge of the page while something is waited for; what is quick is over before it appears."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        with gr.Column(elem_id="vv-waiting"):
            self.line = gr.HTML("", elem_id="vv-waiting-line")
            self.stop = gr.Button("Stop", size="sm", elem_id="vv-waiting-stop")

    @property
    def shown(self) -> dict[str, Any]:
        """Options of an event that is waited for."""
        return {"show_progress": "full", "show_progress_on": self.line}

    def connect(self, said: gr.Markdown) -> None:
        """Connect the events; ``said`` is where the page tells what happened."""
        self.stop.click(self._stop, None, said, queue=False, show_progress="hidden", api_visibility="private")

    @contextmanager
    def running(
        self, request: gr.Request, name: str, progress: Any, ticket: str | None = None
    ) -> Iterator[Callable[[Step | DownloadProgress], None]]:
        """While something runs, what it tells how far it is.

        Args:
            request, progress: Gradio's.
            name: of the job; the visitor's one before of the same name is stopped.
            ticket: where it was announced.

        Raises:
            Stopped: in what is told, once the visitor wants it to end, or has left.
        """
        with self.jobs.running(str(request.session_hash), name, ticket) as check:

            def report(state: Step | DownloadProgress) -> None:
                check()
                if isinstance(state, Step):
                    progress((state.done, state.total), desc=state.said)
                else:
                    progress((state.done, state.total), desc=f"Downloading {state.repository}", unit="bytes")

            yield report

    def dismiss(self, request: gr.Request) -> None:
        """End a visitor's analysis that is of no use any more."""
        self.jobs.stop(str(request.session_hash), ANALYSIS)

    def _stop(self, request: gr.Request) -> Any:
        visitor = str(request.session_hash)
        stopped = [self.jobs.stop(visitor, name) for name in (ANALYSIS, OPENING, SECOND)]
        return notice(STOPPED) if any(stopped) else gr.skip()
