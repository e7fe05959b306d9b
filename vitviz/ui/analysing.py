"""What runs a model for the page: another picture, another model, another sight, or an analysis that is gone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from vitviz.analysis.analysis import Analysis
from vitviz.attention.layout import TokenLayout
from vitviz.errors.kinds import VitvizError
from vitviz.ui.drawing import HIDDEN, NO_PICTURE, Drawing, Wish, changed, notice
from vitviz.ui.following import Pending
from vitviz.ui.jobs import Jobs, Stopped, Superseded
from vitviz.ui.models import LOST, START, ModelPicker
from vitviz.ui.panels import ControlPanel, model_aside, model_card
from vitviz.ui.photo import Preview
from vitviz.ui.server.lanes import RUNS_LONG, RUNS_MODEL
from vitviz.ui.sight import Seen, Sight
from vitviz.ui.waiting import ANALYSIS, Waiting
from vitviz.ui.workbench import Large, Workbench
from vitviz.weights import Model

# Gradio hands its own to a handler with this default.
PROGRESS = gr.Progress()
NOTHING = Seen(START, "", Sight(""))


@dataclass(frozen=True)
class Shown:
    """The components that show what a model makes of a picture, beside the map.

    Args:
        choice: the model that the page shows.
        wanted: the one that it is to show; another one while a model is switched.
        photo: the picture.
        predictions, unlike: the classes, and whether the model can know.
        aside, card: what is said of the model.
        explorer: of its attention.
    """

    choice: gr.State
    wanted: gr.State
    photo: Any
    predictions: gr.Label
    unlike: gr.Markdown
    aside: gr.Markdown
    card: gr.Markdown
    explorer: Any


class Analysing:
    """The events that run a model for the page.

    What takes long is not run where it is asked for, which would hold up everybody: it gets a ticket, and a change of
    the ticket starts it in a place of its own, with what the page then says. Until it is over, or where it is stopped,
    the page shows what it showed before.

    Args:
        bench, jobs: of the app.
        picker, panel, drawing, waiting: of the page.
        shown: its components.
        asked: what a link asks for that the page does not show yet, a :class:`Pending`.
        seen: what it shows at first.
    """

    def __init__(
        self,
        bench: Workbench,
        jobs: Jobs,
        picker: ModelPicker,
        panel: ControlPanel,
        drawing: Drawing,
        waiting: Waiting,
        shown: Shown,
        asked: gr.State,
        seen: Seen,
    ) -> None:
        self.bench, self.jobs, self.picker, self.panel = bench, jobs, picker, panel
        self.drawing, self.waiting, self.shown, self.asked = drawing, waiting, shown, asked
        self.seen = gr.State(seen)
        # What was last asked for, whatever became of it.
        self.tried = gr.State(seen)
        # Changes when the controls say what nobody asked for.
        self.again = gr.State(0)
        # Tickets, of an analysis and of a model with its analysis.
        self.late, self.switching = gr.State(""), gr.State("")

    @property
    def of_page(self) -> list[Any]:
        """What shows an analysis."""
        shown, drawing = self.shown, self.drawing
        about = [shown.predictions, shown.unlike, shown.explorer]
        return [self.seen, self.tried, self.panel.token, *about, *drawing.outputs]

    @property
    def of_model(self) -> list[Any]:
        """What shows a model."""
        shown = self.shown
        return [shown.wanted, shown.choice, *self.picker.shows, shown.aside, shown.card, *self.panel.of_the_model]

    def connect(self, told: list[Any]) -> tuple[list[Any], Any]:
        """Connect the events; ``told`` are the key, the model, the picture and the controls.

        Returns:
            the events after which the page shows something else, and the one after which it shows the same anew.
        """
        shown, panel, page, model = self.shown, self.panel, self.of_page, self.of_model
        heavy: dict[str, Any] = {**self.waiting.shown, "api_visibility": "private"}
        # One event for all of them: apart, each would tell of the others' old values, in any order.
        said = [self.seen, *told[1:]]
        analysed = gr.on(
            [part.change for part in (shown.photo, *panel.sight.components, self.again)],
            self._analyze,
            [self.switching, self.asked, self.tried, *said],
            [self.switching, self.late, shown.photo, *page],
            trigger_mode="always_last",
            **RUNS_MODEL,
            **heavy,
        )
        analysed_late = self.late.change(
            self._analyze_late, [self.late, self.asked, *said], [shown.photo, *page], **RUNS_LONG, **heavy
        )
        # Not after what chooses a model: a menu tells of one choice more than once.
        switched = shown.wanted.change(
            self._switch,
            [self.switching, shown.wanted, *told],
            [self.switching, *model, *page],
            **RUNS_MODEL,
            **heavy,
        )
        switched_late = self.switching.change(
            self._switch_late, [self.switching, shown.wanted, *told], [*model, *page], **RUNS_LONG, **heavy
        )
        renewed = shown.explorer.expired(
            self._renew,
            [self.switching, self.picker.menu, *told],
            [self.late, self.seen, shown.wanted, shown.choice, self.drawing.key, shown.explorer, self.drawing.notice],
            show_progress="hidden",
            api_visibility="private",
            **RUNS_MODEL,
        )
        return [analysed, analysed_late, switched, switched_late], renewed

    def once_more(self, tried: Seen, again: int, *told: Any) -> Any:
        """Another value of ``again`` where the controls say what was not tried.

        Of values that change at once, an event may tell old ones, and be the last.
        """
        _, choice, upload, *_ = told
        if upload is None or choice != tried.choice:
            return gr.skip()
        return gr.skip() if self._wanted(None, told[1:]) == tried else again + 1

    def _switch(self, request: gr.Request, progress: Any = PROGRESS, *said: Any) -> tuple[Any, ...]:
        """Show another model, or let it wait among what takes long."""
        ticket, wanted, _, choice, *_ = said
        try:
            if wanted == choice:
                # The one before is wanted again.
                if self._is_on_its_way(request, ticket):
                    self.waiting.dismiss(request)
                return gr.skip(), *self._same_model()
            return gr.skip(), *self._switched(request, progress, None, *said[1:])
        except Large:
            return self.jobs.ask(str(request.session_hash), ANALYSIS), *self._same_model(notice=HIDDEN)

    def _switch_late(self, request: gr.Request, progress: Any = PROGRESS, *said: Any) -> tuple[Any, ...]:
        return self._switched(request, progress, *said)

    def _switched(self, request: gr.Request, progress: Any, ticket: str | None, *said: Any) -> tuple[Any, ...]:
        """What the page shows of another model.

        Args:
            request, progress: Gradio's.
            ticket: of an analysis that may take long.
            said: the model that is wanted, the key, the model, the picture and the controls.

        Raises:
            Large: it would take long, and has no ticket.
        """
        wanted, _, choice, upload, *values = said
        self.drawing.dismiss(request)
        try:
            model = self.bench.model(wanted)
            settings = self.panel.read(values)
            # Another state of the same network is asked the same.
            updates: list[Any] = [gr.skip()] * len(self.panel.of_the_model)
            menu = gr.skip(), self.picker.shown_step(model)
            if wanted.run != choice.run:
                updates, settings = self.panel.for_model(model, settings)
                menu = self.picker.shown(wanted, model)
            about = [gr.skip(), wanted, *menu, model_aside(model), model_card(model)]
            if upload is None:
                self.waiting.dismiss(request)
                tokens, _ = self.panel.token_menu(model, _trained(model), settings)
                return *about, *updates, NOTHING, NOTHING, tokens, None, HIDDEN, None, *changed(**NO_PICTURE)
            with self.waiting.running(request, ANALYSIS, progress, ticket) as report:
                key, analysis = self.bench.analyze(model, upload, settings.sight, report, ticket is not None)
            tokens, settings = self.panel.token_menu(model, analysis.trace.layout, settings)
            picture = self.drawing.fresh(request, analysis, Wish(key, wanted, upload, settings))
            explored = self.bench.explored(key, analysis, wanted, upload, settings.sight)
        except Superseded:
            return self._same_model()
        except (VitvizError, Stopped) as error:
            menu = (gr.skip(), gr.skip()) if choice == LOST else self.picker.shown(choice, self.bench.model(choice))
            told = self._same_model(notice=notice(f"{error}. Below is still the model before."), stop=HIDDEN)
            return choice, gr.skip(), *menu, *told[4:]
        seen = Seen.of(wanted, upload, settings.sight)
        return *about, *updates, seen, seen, tokens, *self._classes(analysis), explored, *picture

    def _same_model(self, **changes: Any) -> tuple[Any, ...]:
        model = tuple(gr.skip() for _ in self.of_model)
        return *model, *self._same_page(**changes)

    def _same_page(self, tried: Any = None, **changes: Any) -> tuple[Any, ...]:
        return gr.skip(), gr.skip() if tried is None else tried, *(gr.skip() for _ in range(4)), *changed(**changes)

    def _is_on_its_way(self, request: gr.Request, ticket: str) -> bool:
        """Whether a model with this ticket is being switched to."""
        return ticket != "" and self.jobs.asked(str(request.session_hash), ANALYSIS) == ticket

    def _analyze(self, request: gr.Request, progress: Any = PROGRESS, *said: Any) -> tuple[Any, ...]:
        """Analyse what the page says, or let it wait among what takes long."""
        ticket, asked, tried, seen, *told = said
        if self._is_on_its_way(request, ticket):
            # The model that comes is to see it, and not the one that goes.
            switching = self.jobs.ask(str(request.session_hash), ANALYSIS)
            return switching, gr.skip(), gr.skip(), *self._same_page(self._wanted(None, told))
        wanted = self._wanted(asked, told)
        if wanted == tried != seen:
            # What a link asks for and cannot be is not tried again.
            wanted = self._wanted(None, told)
        try:
            return gr.skip(), gr.skip(), *self._analyzed(request, progress, None, wanted, seen, *told)
        except Large:
            late = self.jobs.ask(str(request.session_hash), ANALYSIS)
            return gr.skip(), late, gr.skip(), *self._same_page(wanted, notice=HIDDEN)

    def _analyze_late(self, request: gr.Request, progress: Any = PROGRESS, *said: Any) -> tuple[Any, ...]:
        ticket, asked, seen, *told = said
        return self._analyzed(request, progress, ticket, self._wanted(asked, told), seen, *told)

    def _analyzed(
        self, request: gr.Request, progress: Any, ticket: str | None, wanted: Seen, seen: Seen, *told: Any
    ) -> tuple[Any, ...]:
        """What the page shows of a picture.

        Args:
            request, progress: Gradio's.
            ticket: of an analysis that may take long.
            wanted, seen: what it is to show, and what it shows.
            told: the model, the picture and the controls.

        Raises:
            Large: it would take long, and has no ticket.
        """
        choice, upload, *values = told
        if upload is None:
            self.waiting.dismiss(request)
            self.drawing.dismiss(request)
            return gr.skip(), NOTHING, NOTHING, gr.skip(), None, HIDDEN, None, *changed(**NO_PICTURE)
        # A page tells of one change more than once, and of those that it was told to make itself.
        if wanted == seen:
            # What takes long and was asked for in between is not wanted any more.
            self.waiting.dismiss(request)
            return gr.skip(), *self._same_page(wanted)
        self.drawing.dismiss(request)
        try:
            settings = replace(self.panel.read(values), sight=wanted.sight)
            with self.waiting.running(request, ANALYSIS, progress, ticket) as report:
                key, analysis = self.bench.analyze(
                    self.bench.model(choice), upload, settings.sight, report, ticket is not None
                )
            menu, settings = self.panel.token_menu(analysis.model, analysis.trace.layout, settings)
            picture = self.drawing.fresh(request, analysis, Wish(key, choice, upload, settings))
            explored = self.bench.explored(key, analysis, choice, upload, settings.sight)
        except Superseded:
            return gr.skip(), *self._same_page()
        except Stopped:
            # The button says so.
            return gr.skip(), *self._same_page(None if ticket else wanted)
        except VitvizError as error:
            said = notice(f"{error}. Below is still the picture before.")
            return gr.skip(), *self._same_page(wanted, notice=said, stop=HIDDEN)
        preview = gr.skip() if upload.shown else Preview(analysis.prepared.image, upload)
        return preview, wanted, wanted, menu, *self._classes(analysis), explored, *picture

    def _wanted(self, asked: Pending | None, told: Any) -> Seen:
        """What the page is to show, by what it is told and what a link asks for that it does not show yet."""
        choice, upload, *values = told
        if upload is None:
            return NOTHING
        wanted = Seen.of(choice, upload, self.panel.sight_of(values))
        return wanted if asked is None else asked.over(wanted)

    def _classes(self, analysis: Analysis) -> tuple[Any, ...]:
        """What the model makes of a picture, and whether it can know."""
        unlike = self.bench.unlike(analysis)
        return self.bench.predictions(analysis), gr.update(value=unlike, visible=bool(unlike))

    def _renew(self, request: gr.Request, ticket: str, name: str, key: str, *said: Any) -> tuple[Any, ...]:
        """The explorer's analysis once more, where it has left the cache."""
        choice, upload, *values = said
        skipped = (gr.skip(),) * 4
        if upload is None:
            return *skipped, "", None, gr.skip()
        # What comes next renews it.
        if self._is_on_its_way(request, ticket):
            return *skipped, gr.skip(), gr.skip(), gr.skip()
        found: Any = gr.skip()
        if choice == LOST:
            found = choice = self.picker.named(name)
        try:
            sight = self.panel.sight_of(values)
            key, analysis = self.bench.analyze(self.bench.model(choice), upload, sight, waits=False)
        except Large:
            late = self.jobs.ask(str(request.session_hash), ANALYSIS)
            return late, NOTHING, found, found, gr.skip(), gr.skip(), gr.skip()
        except VitvizError as error:
            return *skipped, gr.skip(), gr.skip(), notice(error)
        explored = self.bench.explored(key, analysis, choice, upload, sight)
        return gr.skip(), gr.skip(), found, found, key, explored, gr.skip()


def _trained(model: Model) -> TokenLayout:
    config = model.network.config
    return config.layout(config.image_height, config.image_width)
