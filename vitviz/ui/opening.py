"""How the page comes to another model: one of the menu, the visitor's own, or what a link asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from vitviz.errors.kinds import VitvizError
from vitviz.ui.drawing import notice
from vitviz.ui.following import Pending
from vitviz.ui.jobs import Stopped, Superseded
from vitviz.ui.models import LOST, OWN, START, ModelChoice, ModelPicker
from vitviz.ui.waiting import OPENING, Waiting
from vitviz.ui.workbench import Step, Workbench

# Gradio hands its own to a handler with this default.
PROGRESS = gr.Progress()


class ModelOpening:
    """The events that open a model; what the page shows of it then follows from the choice that they change."""

    def __init__(self, bench: Workbench, picker: ModelPicker, waiting: Waiting) -> None:
        self.bench, self.picker, self.waiting = bench, picker, waiting

    def connect(self, choice: gr.State, opened: list[Any]) -> None:
        """Connect the events.

        Args:
            choice: the model that the page shows.
            opened: the choice that is made, the menu, the training step and the notice.
        """
        picker = self.picker
        options: dict[str, Any] = {"trigger_mode": "once", "concurrency_limit": 2, "concurrency_id": "open"}
        options |= {**self.waiting.shown, "api_visibility": "private"}
        picker.menu.input(self._open_named, [choice, picker.menu], opened, **options)
        gr.on(
            [picker.step.input, picker.step.release],
            self._open_step,
            [choice, picker.step],
            opened,
            **{**options, "trigger_mode": "always_last"},
        )
        gr.on(
            [picker.open.click, picker.hub.submit, picker.overrides.submit],
            self._open_own,
            [choice, picker.files, picker.hub, picker.overrides],
            opened,
            **options,
        )

    def follow(self, asked: Pending | None, request: gr.Request, progress: Any = PROGRESS) -> tuple[Any, ...]:
        """The model that a link asks for; not before the picture, which is then seen by both."""
        linked = START if asked is None else asked.linked.first.choice
        if linked == START:
            return gr.skip(), gr.skip(), gr.skip(), gr.skip()
        wanted, *_, told = self._open(request, START, lambda: linked, progress)
        # Without its model, the rest of a link has no meaning.
        if wanted != linked:
            return None, wanted, gr.skip(), told
        _, step = self.picker.shown(wanted, self.bench.model(wanted))
        return gr.skip(), wanted, step, told

    def _open_named(
        self, choice: ModelChoice, name: str, request: gr.Request, progress: Any = PROGRESS
    ) -> tuple[Any, ...]:
        return self._open(request, choice, lambda: choice if name == OWN else ModelChoice(name), progress)

    def _open_step(
        self, choice: ModelChoice, place: float | None, request: gr.Request, progress: Any = PROGRESS
    ) -> tuple[Any, ...]:
        def chosen() -> ModelChoice:
            snapshots = self.bench.model(choice.run).snapshots
            # Of a model without them, the page may still tell of the slider of the one before.
            if snapshots is None or place is None:
                return choice
            steps = snapshots.steps
            step = steps[min(max(int(place), 0), len(steps) - 1)]
            return choice._replace(step=None if step == steps[-1] else step)

        return self._open(request, choice, chosen, progress)

    def _open_own(
        self,
        choice: ModelChoice,
        files: list[str] | None,
        hub: str,
        overrides: str,
        request: gr.Request,
        progress: Any = PROGRESS,
    ) -> tuple[Any, ...]:
        return self._open(request, choice, lambda: self.picker.own(files, hub, overrides), progress)

    def _open(
        self, request: gr.Request, choice: ModelChoice, chosen: Callable[[], ModelChoice], progress: Any
    ) -> tuple[Any, ...]:
        """Open a model; what was there before stays where it cannot be opened."""
        try:
            wanted = chosen()
            with self.waiting.running(request, OPENING, progress) as report:
                report(Step("Opening the model"))
                self.bench.model(wanted, report)
        except Superseded:
            return gr.skip(), gr.skip(), gr.skip(), gr.skip()
        except (VitvizError, Stopped) as error:
            menu = (gr.skip(), gr.skip()) if choice == LOST else self.picker.shown(choice, self.bench.model(choice))
            return choice, *menu, notice(f"{error}. Below is still the model before.")
        return wanted, gr.skip(), gr.skip(), gr.update(visible=False)
