"""Another picture or model beside the first in the explorer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gradio as gr

from vitviz.errors.kinds import VitvizError
from vitviz.ui.explorer import Explored
from vitviz.ui.drawing import notice
from vitviz.ui.jobs import Stopped, Superseded
from vitviz.ui.links import beside_words
from vitviz.ui.models import START, ModelChoice, ModelPicker
from vitviz.ui.panels import ControlPanel
from vitviz.ui.photo import PhotoInput, Upload
from vitviz.ui.server.lanes import RUNS_LONG
from vitviz.ui.sight import Sight
from vitviz.ui.waiting import SECOND, Waiting
from vitviz.ui.workbench import Step, Workbench
from vitviz.weights import DownloadProgress

SAME = ""
# Gradio hands its own to a handler with this default.
PROGRESS = gr.Progress()


class SecondPicker:
    """What the first is compared with, and its events: the same picture and model where nothing else is chosen."""

    def __init__(self, bench: Workbench, picker: ModelPicker) -> None:
        self.bench = bench
        # Whether what the notice says is about the second.
        self.told = gr.State(False)
        # Changes when the first is another one, and there is a second.
        self.due = gr.State(0)
        with gr.Accordion("Compare with another picture or model", open=False, elem_id="vv-second"), gr.Row():
            self.model = gr.Dropdown(
                [("the same model", SAME), *picker.choices()],
                value=SAME,
                label="Second model",
                info="MB: to be downloaded first",
                elem_id="vv-second-model",
            )
            self.photo = PhotoInput(
                None,
                label="Second picture",
                height=200,
                sources=["upload", "clipboard"],
                elem_id="vv-second-photo",
            )

    def connect(
        self,
        panel: ControlPanel,
        waiting: Waiting,
        first: list[Any],
        beside: list[Any],
        renewed: Any,
    ) -> None:
        """Connect the events.

        Args:
            panel: says how pictures are seen.
            waiting: shows how far it is.
            first: the key of the first analysis, its model and its picture.
            beside: the explorer and the notice.
            renewed: the event after which the first is shown anew.
        """
        self.panel, self.waiting = panel, waiting
        options: dict[str, Any] = {**RUNS_LONG, **waiting.shown, "api_visibility": "private"}
        inputs, outputs = [self.told, *first, self.model, self.photo, *panel.components], [self.told, *beside]
        for after in (self.due.change, renewed.then):
            after(self._follow, inputs, outputs, **options)
        chosen = [self.model.change, self.photo.change]
        gr.on(chosen, self._show, inputs, outputs, trigger_mode="always_last", **options)

    @property
    def chosen(self) -> list[Any]:
        """What :meth:`count` is told of."""
        return [self.due, self.model, self.photo]

    def count(self, due: int, name: str, photo: Upload | None) -> Any:
        """Another value of ``due`` where there is a second."""
        return gr.skip() if _is_the_first(name, photo) else due + 1

    def _show(self, request: gr.Request, progress: Any = PROGRESS, *told: Any) -> tuple[Any, ...]:
        """The explorer with what the first analysis is compared with."""
        said, key, choice, upload, name, photo, *values = told
        if upload is None:
            return gr.skip(), gr.skip(), gr.skip()
        try:
            first = key, choice, upload, self.panel.sight_of(values)
            with self.waiting.running(request, SECOND, progress) as report:
                shown = with_second(self.bench, first, name, photo, report)
            return False, shown, gr.update(visible=False) if said else gr.skip()
        except Superseded:
            return gr.skip(), gr.skip(), gr.skip()
        except (VitvizError, Stopped) as error:
            return True, gr.skip(), notice(error)

    def _follow(self, request: gr.Request, progress: Any = PROGRESS, *told: Any) -> tuple[Any, ...]:
        """The same for another first analysis, where there is a second."""
        name, photo = told[4:6]
        same = gr.skip(), gr.skip(), gr.skip()
        return same if _is_the_first(name, photo) else self._show(request, progress, *told)


def with_second(
    bench: Workbench,
    first: tuple[str, ModelChoice, Upload, Sight],
    name: str,
    photo: Upload | None,
    report: Callable[[Step | DownloadProgress], None] | None = None,
) -> Explored:
    """The first analysis, and the one that it is compared with where something else is chosen.

    Args:
        bench: that makes the analyses.
        first: the id of the first analysis, its model and picture, and how the one saw the other.
        name: of the second model in the menu; :data:`SAME` for the first one's.
        photo: the second picture; None for the first one.
        report: receives how far a download or an analysis is; an exception that it raises ends it.

    Raises:
        CheckpointError: the second model cannot be opened.
        ImageError: one of the pictures cannot be opened, or its model cannot see it so.
        LimitError: an analysis would need too much memory.
    """
    key, choice, upload, sight = first
    key, analysis = bench.recall(key, choice, upload, sight)
    shown = bench.explored(key, analysis, choice, upload, sight)
    if _is_the_first(name, photo):
        return shown
    shown = replace(shown, query=f"{shown.query}&{beside_words(name, photo, bench.pictures)}")
    if name != SAME:
        choice = START if name == START.source else ModelChoice(name)
        # Another model need not have the resolution that was chosen for the first.
        sight = Sight(sight.fit)
    upload = photo or upload
    key, analysis = bench.analyze(bench.model(choice, report), upload, sight, report)
    return replace(shown, other=bench.explored(key, analysis, choice, upload, sight))


def _is_the_first(name: str, photo: Upload | None) -> bool:
    """Whether nothing else is chosen to be compared."""
    return name == SAME and photo is None
