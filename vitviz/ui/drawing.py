"""The picture with its map: drawn at once, or in a job of its own where the map takes long."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import gradio as gr

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.errors.kinds import VitvizError
from vitviz.progress import Progress
from vitviz.ui.code import as_python
from vitviz.ui.jobs import Jobs, Stopped
from vitviz.ui.links import WRITE_MAP_WORDS, map_words
from vitviz.ui.models import ModelChoice
from vitviz.ui.panels import ControlPanel, Settings
from vitviz.ui.photo import Upload
from vitviz.ui.picture import PictureOutput
from vitviz.ui.texts import markdown, plain
from vitviz.ui.workbench import Workbench

JOB = "draw"
# Gradio hands its own to a handler with this default.
PROGRESS = gr.Progress()
EMPTY = "Drop a picture on the left, paste one, take one with the camera, or choose an example."
# What another picture or model shows until its map is there.
MEANWHILE = "attention"
STOPPED = "Stopped. Below is still the map before."
HIDDEN: dict[str, Any] = gr.update(visible=False)
PARTS = ("key", "drawn", "canvas", "caption", "legend", "code", "link", "notice", "stop", "wish")
NO_PICTURE = {
    "key": "",
    "drawn": "",
    "canvas": None,
    "caption": EMPTY,
    "legend": "",
    "code": "",
    "link": "",
    "notice": HIDDEN,
    "stop": HIDDEN,
}


@dataclass(frozen=True)
class Wish:
    """A map that a visitor asks for.

    Args:
        key: of the analysis.
        choice, upload: the model and the picture of the analysis.
        settings: which map, and how it is drawn.
        ticket: of the job that computes it, where it takes long.
    """

    key: str
    choice: ModelChoice
    upload: Upload
    settings: Settings = field(hash=False)
    ticket: str = ""

    def of(self, settings: Settings) -> Wish:
        """Another map of the same."""
        return replace(self, settings=settings)

    @property
    def stamp(self) -> str:
        """Tells one picture from another, and nothing about it."""
        return stamp(self.key, self.settings.drawn)

    def is_of_the_map_of(self, other: Wish) -> bool:
        """Whether it is the same map, in the same colours or not."""
        method = self.settings.method
        same = self.settings.parameters[method] == other.settings.parameters[method]
        return (self.key, method) == (other.key, other.settings.method) and same


class Drawing:
    """The components of the picture with its map, and what changes them.

    A map that takes long is not drawn where it is asked for, but wished, and a change of the wish starts its job. Until
    that is over, or where it is stopped, the page shows the map before.
    """

    def __init__(self, bench: Workbench, jobs: Jobs, analysis: Analysis, wish: Wish, notice: gr.Markdown) -> None:
        self.bench, self.jobs, self.notice = bench, jobs, notice
        shown = bench.picture(analysis, wish.settings)
        # The page is told when it is loaded: one from before the server was started again must not take it for its own.
        self.first, self.key = wish.key, gr.State("")
        # On the page and not in a State, so that it is what the page shows, in whatever order answers reach it.
        self.drawn = gr.Textbox(wish.stamp, visible="hidden", elem_id="vv-drawn")
        self.wish = gr.State(None)
        self.canvas = PictureOutput(
            shown.overlay,
            label="Attention",
            alt_text="The picture with the attention of the chosen token over it",
            format="webp",
            interactive=False,
            buttons=["download", "fullscreen"],
            elem_id="vv-canvas",
        )
        self.stop = gr.Button("Stop", visible=False, size="sm", elem_id="vv-stop")
        self.legend = gr.HTML(shown.legend, elem_id="vv-legend")
        self.caption = markdown(shown.caption, elem_id="vv-caption")
        with gr.Accordion("As Python", open=False, elem_id="vv-python"):
            self.code = gr.Code(self._code(analysis, wish), language="python", interactive=False, show_label=False)
        self.link = gr.Textbox(map_words(analysis.model, wish.settings), visible="hidden")

    @property
    def outputs(self) -> list[Any]:
        """What the handlers here change, in the order of :data:`PARTS`."""
        return [getattr(self, name) for name in PARTS]

    def connect(self, panel: ControlPanel, told: list[Any]) -> Any:
        """Connect the events; ``told`` are the key, the model, the picture and the controls.

        Returns:
            the event that draws what the controls say.
        """
        self.panel, self.told, self.inputs = panel, told, [self.wish, self.drawn, *told]
        private: dict[str, Any] = {"api_visibility": "private"}
        moved = [*(part.change for part in panel.drawing), panel.words.submit]
        quick: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "concurrency_limit": 4}
        drawn = gr.on(moved, self._draw, self.inputs, self.outputs, **quick, **private)
        self.settle_after(drawn)
        computed = self.wish.change(
            self._compute,
            [self.wish],
            self.outputs,
            show_progress="full",
            show_progress_on=self.canvas,
            trigger_mode="always_last",
            concurrency_id=JOB,
            concurrency_limit=4,
            **private,
        )
        self.settle_after(computed)
        self.stop.click(self._stop, None, [self.notice, self.stop], queue=False, show_progress="hidden", **private)
        return drawn

    def settle_after(self, event: Any) -> None:
        """Draw what the controls say behind an event, where they have moved since what it shows was asked for."""
        private: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        settled = event.then(
            self._settle, self.inputs, self.outputs, trigger_mode="always_last", concurrency_limit=4, **private
        )
        settled.then(None, [self.link], None, js=WRITE_MAP_WORDS, **private)

    def dismiss(self, request: gr.Request) -> None:
        """End the job of a visitor for whom it is of no use any more."""
        self.jobs.stop(str(request.session_hash), JOB)

    def fresh(self, request: gr.Request, analysis: Analysis, wish: Wish) -> tuple[Any, ...]:
        """The map of another picture or model; before it a quick one where it takes long.

        Raises:
            MethodError: the parameters contradict each other.
        """
        self.dismiss(request)
        if not self.bench.takes_long(analysis, wish.settings):
            return changed(key=wish.key, **self._shown(request, analysis, wish))
        meanwhile = wish.of(replace(wish.settings, method=MEANWHILE))
        changes = {"key": wish.key, **self._shown(request, analysis, meanwhile), **self._wished(request, wish)}
        # A link is about what was asked for.
        return changed(**{**changes, "link": map_words(analysis.model, wish.settings)})

    def _draw(
        self,
        request: gr.Request,
        wish: Wish | None,
        drawn: str,
        key: str,
        choice: ModelChoice,
        upload: Upload | None,
        *values: Any,
    ) -> tuple[Any, ...]:
        """What the controls say; a job for anything else ends."""
        if upload is None:
            return changed()
        try:
            wanted = Wish(key, choice, upload, self.panel.read(values))
            if wish is not None and wish.is_of_the_map_of(wanted) and self._asked(request) == wish.ticket:
                # Its colours are those of the controls once it is there.
                return changed()
            self.dismiss(request)
            if drawn == wanted.stamp:
                return changed(notice=HIDDEN, stop=HIDDEN)
            wanted, analysis, renewed = self._analysed(wanted)
            if self.bench.takes_long(analysis, wanted.settings):
                return changed(key=renewed, **self._wished(request, wanted))
            return changed(key=renewed, **self._shown(request, analysis, wanted))
        except VitvizError as error:
            self.dismiss(request)
            return changed(notice=notice(error), stop=HIDDEN)

    def _settle(
        self,
        request: gr.Request,
        wish: Wish | None,
        drawn: str,
        key: str,
        choice: ModelChoice,
        upload: Upload | None,
        *values: Any,
    ) -> tuple[Any, ...]:
        """The same, where no control has just moved: what was said stays, and what was stopped."""
        stop = gr.update(visible=self._asked(request) is not None)
        if upload is None:
            return changed(stop=stop)
        try:
            wanted = Wish(key, choice, upload, self.panel.read(values))
            if drawn == wanted.stamp:
                return changed(stop=stop)
            wanted, analysis, renewed = self._analysed(wanted)
            if not self.bench.takes_long(analysis, wanted.settings):
                return changed(**{**self._shown(request, analysis, wanted), "key": renewed, "notice": gr.skip()})
            if wish is not None and wish.is_of_the_map_of(wanted):
                return changed(key=renewed, stop=stop)
            return changed(**{**self._wished(request, wanted), "key": renewed, "notice": gr.skip()})
        except VitvizError:
            return changed(stop=stop)

    def _compute(self, wish: Wish | None, request: gr.Request, progress: Any = PROGRESS) -> tuple[Any, ...]:
        """What takes long, unless the visitor wants something else by now."""
        if wish is None:
            return changed()
        try:
            with self.jobs.running(str(request.session_hash), JOB, wish.ticket) as check:
                title = METHODS[wish.settings.method].title
                progress(0, desc=title)

                def report(state: Progress) -> None:
                    check()
                    progress((state.done, state.total), desc=title)

                wish, analysis, renewed = self._analysed(wish)
                self.bench.picture(analysis, wish.settings, report)
            return changed(key=renewed, **self._shown(request, analysis, wish))
        except Stopped:
            return changed()
        except VitvizError as error:
            return changed(notice=notice(error), stop=HIDDEN)

    def _stop(self, request: gr.Request) -> tuple[Any, ...]:
        was_running = self.jobs.stop(str(request.session_hash), JOB)
        return notice(STOPPED) if was_running else gr.skip(), HIDDEN

    def _code(self, analysis: Analysis, wish: Wish) -> str:
        return as_python(
            analysis.model, self.bench.start, wish.choice, wish.upload, self.bench.sizes[analysis], wish.settings
        )

    def _asked(self, request: gr.Request) -> str | None:
        return self.jobs.asked(str(request.session_hash), JOB)

    def _analysed(self, wish: Wish) -> tuple[Wish, Analysis, Any]:
        """The wish with the key of its analysis by now, the analysis, and what becomes of the page's key."""
        key, analysis = self.bench.recall(wish.key, wish.choice, wish.upload, wish.settings.sight)
        # Of an analysis that is as it was, the page may know a newer one.
        return replace(wish, key=key), analysis, gr.skip() if key == wish.key else key

    def _wished(self, request: gr.Request, wish: Wish) -> dict[str, Any]:
        """What the page shows of a map that takes long: that it can be stopped; its job shows how far it is."""
        ticket = self.jobs.ask(str(request.session_hash), JOB)
        return {"wish": replace(wish, ticket=ticket), "notice": HIDDEN, "stop": gr.update(visible=True)}

    def _shown(self, request: gr.Request, analysis: Analysis, wish: Wish) -> dict[str, Any]:
        """What the page shows of a map that is there."""
        picture = self.bench.picture(analysis, wish.settings)
        stop = gr.update(visible=self._asked(request) is not None)
        return {
            "drawn": wish.stamp,
            "canvas": picture.overlay,
            "caption": picture.caption,
            "legend": picture.legend,
            "code": self._code(analysis, wish),
            "link": map_words(analysis.model, wish.settings),
            "notice": HIDDEN,
            "stop": stop,
        }


def stamp(key: str, shown: object) -> str:
    """Tells what is shown of one analysis from what is shown of another, and nothing about it."""
    return sha256(repr((key, shown)).encode()).hexdigest()


def changed(**changes: Any) -> tuple[Any, ...]:
    """What changes of :attr:`Drawing.outputs`, by the names in :data:`PARTS`; the rest stays."""
    return tuple(changes.get(name, gr.skip()) for name in PARTS)


def notice(message: object) -> dict[str, Any]:
    """A message as the page shows it: to the letter, whatever the name of a file contains."""
    return gr.update(value=plain(str(message)), visible=True)
