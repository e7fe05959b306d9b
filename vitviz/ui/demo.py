"""The page: its layout, and which change redraws what."""

from __future__ import annotations

from typing import Any, NamedTuple

import gradio as gr

from vitviz.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.errors import VitvizError
from vitviz.layout import TokenLayout
from vitviz.ui.api import publish
from vitviz.ui.attention_explorer import AttentionExplorer
from vitviz.ui.compare import ComparePanel
from vitviz.ui.controls import told_apart
from vitviz.ui.drawing import HIDDEN, NO_PICTURE, Drawing, Wish, changed, notice
from vitviz.ui.files import WRITTEN
from vitviz.ui.following import LinkFollower
from vitviz.ui.jobs import Jobs, Stopped
from vitviz.ui.knobs import Knobs
from vitviz.ui.lanes import RUNS_LONG, RUNS_MODEL
from vitviz.ui.links import MAPS
from vitviz.ui.models import LOST, START, ModelChoice, ModelPicker
from vitviz.ui.opening import ModelOpening
from vitviz.ui.panels import ControlPanel, default_settings, model_aside, model_card
from vitviz.ui.photo import PhotoInput, Preview, Upload
from vitviz.ui.picture import PictureOutput
from vitviz.ui.pictures import EXAMPLES
from vitviz.ui.second import SecondPicker
from vitviz.ui.sight import Sight, SightPicker
from vitviz.ui.switches import SwitchPanel
from vitviz.ui.waiting import ANALYSIS, Waiting
from vitviz.ui.workbench import Large, Workbench
from vitviz.weights import Model, load, resources

# Gradio hands its own to a handler with this default.
PROGRESS = gr.Progress()
TITLE = """# vitviz
What a Vision Transformer attends to, on your own picture. **Move over any patch** to see what it looks at."""
# The map that a click on a prediction shows, where the one before is not about a class.
ABOUT_A_CLASS = "relevance"


class Seen(NamedTuple):
    """What the page shows the analysis of: a model, a picture, and how the one was brought to the other."""

    choice: ModelChoice
    path: str
    sight: Sight


NOTHING = Seen(START, "", Sight(""))
EXPLORE = "explore"


def build_demo(model: Model | None = None, knobs: Knobs | None = None) -> gr.Blocks:
    """The app, with an example already analysed. Launch it with :func:`vitviz.ui.launch_options`.

    Args:
        model: with which the page opens; the bundled checkpoint where it is not given.
        knobs: what the app may take and keep; what the environment says where they are not given.

    Raises:
        CheckpointError: the bundled checkpoint cannot be loaded.
        ConfigError: a variable of the environment has no legal value.
    """
    knobs = knobs or Knobs.of()
    bench = Workbench(model or load(), knobs)
    kept = (min(3600, knobs.keep_seconds), knobs.keep_seconds)
    with gr.Blocks(title="vitviz", fill_width=True, delete_cache=kept, analytics_enabled=False) as demo:
        page = Page(bench)
        private: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        link = page.link
        linked = demo.load(
            link.read,
            None,
            [link.asked, page.choice, page.drawing.key, page.tabs, page.photo, *page.sight.components],
            **private,
        )
        opened = [link.asked, page.wanted, page.drawing.notice]
        model_opened = linked.then(page.opening.follow, link.asked, opened, **private)
        link.connect(model_opened, page.seen, page._tile, [page.sheet, page.sheet_layout])
        demo.unload(page.leave)
        publish(demo, bench)
    demo.temp_file_sets.append(WRITTEN)
    return demo


class Page:
    """The components of the page, filled with the first example, and their events."""

    def __init__(self, bench: Workbench) -> None:
        self.bench, self.jobs = bench, Jobs()
        first = resources("assets") / EXAMPLES[0]
        settings = default_settings(bench.start)
        upload = Upload(first, first.name)
        key, analysis = bench.analyze(bench.start, upload, settings.sight)
        cells, sheet_layout = bench.sheet(analysis, settings)

        self.seen = gr.State(Seen(START, str(first), settings.sight))
        # The page tells when it is loaded.
        self.choice = gr.State(LOST)
        self.wanted = gr.State(START)
        # The ticket of an analysis that takes long.
        self.long = gr.State("")
        self.sheet_layout = gr.State(sheet_layout)
        gr.Markdown(TITLE, elem_classes="vv-title")
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=290):
                self.picker = ModelPicker(bench.start, bench.knobs.models)
                with gr.Accordion("Your own checkpoint", open=False, visible=bench.knobs.models == "all"):
                    self.picker.render_own()
                self.photo = PhotoInput(
                    str(first),
                    label="Picture",
                    height=220,
                    sources=["upload", "clipboard", "webcam"],
                    elem_id="vv-photo",
                )
                gr.Examples(
                    [[str(resources("assets") / name)] for name in EXAMPLES],
                    [self.photo],
                    label="Examples",
                    elem_id="vv-examples",
                )
                self.sight = SightPicker(bench.start)
                unlike = bench.unlike(analysis)
                self.unlike = gr.Markdown(unlike, visible=bool(unlike), elem_id="vv-unlike")
                self.predictions = gr.Label(
                    bench.predictions(analysis),
                    label="Predictions",
                    num_top_classes=5,
                    show_heading=False,
                    elem_id="vv-predictions",
                )
                self.aside = gr.Markdown(model_aside(bench.start), elem_classes="vv-aside", elem_id="vv-aside")
                with gr.Accordion("About this model", open=False):
                    self.card = gr.Markdown(model_card(bench.start), elem_id="vv-card")
            with gr.Column(scale=9, min_width=320):
                self.notice = gr.Markdown(visible=False, latex_delimiters=[], elem_id="vv-notice")
                with gr.Tabs(selected=EXPLORE, elem_id="vv-tabs") as self.tabs:
                    with gr.Tab("Explore", id=EXPLORE, elem_id="vv-explore"):
                        self.explorer = AttentionExplorer(
                            bench.explored(key, analysis, START, upload, settings.sight),
                            files=bench.file,
                            elem_id="vv-explorer",
                        )
                        self.second = SecondPicker(bench, self.picker)
                    with gr.Tab("Maps", id=MAPS, elem_id="vv-maps"), gr.Row(equal_height=False):
                        with gr.Column(scale=5, min_width=320):
                            wish = Wish(key, START, upload, settings)
                            self.drawing = Drawing(bench, self.jobs, analysis, wish, self.notice)
                        with gr.Column(scale=4, min_width=320):
                            self._render_panel(cells)
        self.waiting = Waiting(self.jobs)
        self.opening = ModelOpening(bench, self.picker, self.waiting)
        self.about = gr.State(self.seen.value)
        self.link = LinkFollower(self.panel, self.drawing, self.second)
        self.compare = ComparePanel(bench, self.jobs)
        self.switches = SwitchPanel(bench, self.jobs, analysis)
        self._connect()

    def _render_panel(self, cells: Any) -> None:
        """The controls of the maps, and the sheet below them."""
        self.panel = ControlPanel(self.bench.start, self.sight)
        with gr.Accordion("All layers × heads", open=True):
            self.sheet = PictureOutput(
                cells,
                label="Click a cell",
                alt_text="Attention of the chosen token in every layer (rows) and head (columns)",
                format="png",
                interactive=False,
                buttons=["download", "fullscreen"],
                elem_id="vv-sheet",
            )
            self.panel.shared_scale.render()

    def _connect(self) -> None:
        panel, picker, drawing = self.panel, self.picker, self.drawing
        told = [drawing.key, self.choice, self.photo, *panel.components]
        tiled = [self.sheet, self.sheet_layout]
        of_another = [self.about, *self.compare.outputs, *self.switches.outputs]
        self.waiting.connect(drawing.notice)
        drawing.connect(panel, told)
        self.compare.connect(panel, told)
        self.switches.connect(panel, told)
        private: dict[str, Any] = {"api_visibility": "private"}
        quick: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "concurrency_limit": 4}

        heavy: dict[str, Any] = {**RUNS_MODEL, **self.waiting.shown, **private}
        quiet: dict[str, Any] = {"show_progress": "hidden", **private}
        of_picture = [self.seen, panel.token, self.predictions, self.unlike, self.explorer, *drawing.outputs]
        # One event for all of them: apart, each would tell of the others' old values, in any order.
        of_analysis = [self.seen, self.choice, self.photo, *panel.components]
        analysed = gr.on(
            [part.change for part in (self.photo, *self.sight.components, self.link.again)],
            self._analyze,
            of_analysis,
            [self.long, self.photo, *of_picture],
            trigger_mode="always_last",
            **heavy,
        )
        analysed_late = self.long.change(
            self._analyze_late,
            [self.long, *of_analysis],
            [self.long, self.photo, *of_picture],
            **RUNS_LONG,
            **self.waiting.shown,
            **private,
        )

        self.opening.connect(self.choice, [self.wanted, picker.menu, drawing.notice])
        # Not after each of these: a menu tells of one choice more than once.
        switched = self.wanted.change(
            self._show_model,
            [self.wanted, *told],
            [self.wanted, self.choice, picker.menu, self.aside, self.card, *panel.of_the_model, *of_picture],
            **heavy,
        )
        for event in (analysed, analysed_late, switched):
            drawing.settle_after(event)
            event.then(self._tile, told, tiled, **quick, **private)
            event.then(self._clear, [self.seen, self.about, *told], of_another, **quick, **private)

        gr.on([part.change for part in panel.tiling], self._tile, told, tiled, **quick, **private)
        self.predictions.select(
            self._choose_class,
            [self.choice, panel.method],
            [panel.method, panel.target, self.tabs, drawing.notice],
            **quick,
            **private,
        )
        drawing.canvas.select(self._pick, told, [panel.token, drawing.notice], **quick, **private)
        beside = [self.explorer, drawing.notice]
        asked, renewed = [picker.menu, *told], [self.choice, drawing.key, *beside]
        again = self.explorer.expired(self._again, asked, renewed, **RUNS_MODEL, **quiet)
        self.second.connect(panel, self.waiting, told[:3], beside, [analysed, analysed_late, switched, again])
        self.sheet.select(
            self._choose_cell, [self.sheet_layout], [panel.method, panel.layer, panel.head], **quick, **private
        )

    def leave(self, request: gr.Request) -> None:
        """End what runs for a visitor whose page is closed."""
        self.jobs.leave(str(request.session_hash))

    def _show_model(
        self,
        request: gr.Request,
        progress: Any = PROGRESS,
        *said: Any,
    ) -> tuple[Any, ...]:
        wanted, key, choice, upload, *values = said
        skipped = tuple(gr.skip() for _ in range(len(self.panel.of_the_model) + 7))
        if wanted == choice:
            return wanted, choice, gr.skip(), *skipped, *changed()
        self.drawing.dismiss(request)
        try:
            model = self.bench.model(wanted)
            updates, settings = self.panel.for_model(model, self.panel.read(values))
            menu = self.picker.shown(wanted, model)
            about = [wanted, wanted, menu, model_aside(model), model_card(model), *updates]
            if upload is None:
                tokens, _ = self.panel.token_menu(model, _trained(model), settings)
                return *about, NOTHING, tokens, None, HIDDEN, None, *changed(**NO_PICTURE)
            with self.waiting.running(request, ANALYSIS, progress) as report:
                key, analysis = self.bench.analyze(model, upload, settings.sight, report, large="is small")
            tokens, settings = self.panel.token_menu(model, analysis.trace.layout, settings)
            picture = self.drawing.fresh(request, analysis, Wish(key, wanted, upload, settings))
            explored = self.bench.explored(key, analysis, wanted, upload, settings.sight)
        except (VitvizError, Stopped) as error:
            menu = gr.skip() if choice == LOST else self.picker.shown(choice, self.bench.model(choice))
            told = notice(f"{error}. Below is still the model before.")
            return choice, choice, menu, *skipped, *changed(notice=told, stop=HIDDEN)
        seen = Seen(wanted, str(upload.path), settings.sight)
        return *about, seen, tokens, *self._classes(analysis), explored, *picture

    def _analyze(self, request: gr.Request, progress: Any = PROGRESS, *said: Any) -> tuple[Any, ...]:
        try:
            return self._analyzed(request, progress, None, *said)
        except Large:
            ticket = self.jobs.ask(str(request.session_hash), ANALYSIS)
            return ticket, *(gr.skip() for _ in range(7)), *changed(notice=HIDDEN)

    def _analyze_late(
        self, request: gr.Request, progress: Any = PROGRESS, ticket: str = "", *said: Any
    ) -> tuple[Any, ...]:
        return self._analyzed(request, progress, ticket, *said)

    def _analyzed(self, request: gr.Request, progress: Any, ticket: str | None, *said: Any) -> tuple[Any, ...]:
        """What the page shows of a picture.

        Args:
            request, progress: Gradio's.
            ticket: of an analysis that may take long.
            said: what the page shows, the model, the picture and the controls.

        Raises:
            Large: it would take long, and has no ticket.
        """
        seen, choice, upload, *values = said
        if upload is None:
            self.waiting.dismiss(request)
            self.drawing.dismiss(request)
            return gr.skip(), gr.skip(), NOTHING, gr.skip(), None, HIDDEN, None, *changed(**NO_PICTURE)
        wanted = Seen(choice, str(upload.path), self.panel.sight_of(values))
        # A page tells of one change more than once, and of those that it was told to make itself.
        if wanted == seen:
            # What takes long and was asked for in between is not wanted any more.
            self.waiting.dismiss(request)
            return *(gr.skip() for _ in range(7)), *changed()
        self.drawing.dismiss(request)
        try:
            settings = self.panel.read(values)
            with self.waiting.running(request, ANALYSIS, progress, ticket) as report:
                large: Any = "is refused" if ticket is None else "waits"
                key, analysis = self.bench.analyze(self.bench.model(choice), upload, settings.sight, report, large)
            menu, settings = self.panel.token_menu(analysis.model, analysis.trace.layout, settings)
            picture = self.drawing.fresh(request, analysis, Wish(key, choice, upload, settings))
            explored = self.bench.explored(key, analysis, choice, upload, settings.sight)
        except Stopped:
            # By the button, which says so, or for something else, which then is shown.
            return *(gr.skip() for _ in range(7)), *changed()
        except VitvizError as error:
            told = notice(f"{error}. Below is still the picture before.")
            return *(gr.skip() for _ in range(7)), *changed(notice=told, stop=HIDDEN)
        preview = gr.skip() if upload.shown else Preview(analysis.prepared.image, upload)
        return gr.skip(), preview, wanted, menu, *self._classes(analysis), explored, *picture

    def _classes(self, analysis: Analysis) -> tuple[Any, ...]:
        """What the model makes of a picture, and whether it can know."""
        unlike = self.bench.unlike(analysis)
        return self.bench.predictions(analysis), gr.update(value=unlike, visible=bool(unlike))

    def _tile(self, key: str, choice: ModelChoice, upload: Upload | None, *values: Any) -> tuple[Any, ...]:
        if upload is None:
            return None, None
        try:
            settings = self.panel.read(values)
            _, analysis = self.bench.recall(key, choice, upload, settings.sight)
            return self.bench.sheet(analysis, settings)
        except VitvizError:
            # The drawing of the picture says what is wrong; the sheet stays as it was.
            return gr.skip(), gr.skip()

    def _clear(self, seen: Seen, about: Seen, *told: Any) -> tuple[Any, ...]:
        """Forget what was compared and switched off on another picture."""
        if seen == about:
            return tuple(gr.skip() for _ in range(7))
        return seen, *self.compare.cleared(), *self.switches.cleared(*told)

    def _pick(
        self, event: gr.SelectData, key: str, choice: ModelChoice, upload: Upload | None, *values: Any
    ) -> tuple[Any, ...]:
        if upload is None:
            return gr.skip(), gr.skip()
        try:
            _, analysis = self.bench.recall(key, choice, upload, self.panel.sight_of(values))
        except VitvizError as error:
            return gr.skip(), notice(error)
        patch = self.bench.patch_at(analysis, *event.index)
        if patch is None:
            return gr.skip(), notice("The model did not see this part of the picture: it was cut off before.")
        return self.panel.token_value(patch), gr.update(visible=False)

    def _again(self, name: str, key: str, choice: ModelChoice, upload: Upload | None, *values: Any) -> tuple[Any, ...]:
        """The explorer's analysis once more, where it has left the cache."""
        if upload is None:
            return gr.skip(), "", None, gr.skip()
        try:
            choice = self.picker.named(name) if choice == LOST else choice
            sight = self.panel.sight_of(values)
            key, analysis = self.bench.analyze(self.bench.model(choice), upload, sight)
        except VitvizError as error:
            return gr.skip(), gr.skip(), gr.skip(), notice(error)
        return choice, key, self.bench.explored(key, analysis, choice, upload, sight), gr.skip()

    def _choose_class(self, choice: ModelChoice, method: str, event: gr.SelectData) -> tuple[Any, ...]:
        """Ask about the class whose bar was clicked, with a map that can be about one."""
        try:
            labels = self.bench.model(choice).labels
        except VitvizError as error:
            return gr.skip(), gr.skip(), gr.skip(), notice(error)
        index = next((index for index in range(len(labels)) if told_apart(labels, index) == event.value), None)
        if index is None:
            return gr.skip(), gr.skip(), gr.skip(), gr.skip()
        shown = gr.skip() if METHODS[method].class_specific else ABOUT_A_CLASS
        return shown, str(index), gr.update(selected=MAPS), gr.update(visible=False)

    def _choose_cell(self, layout: Any, event: gr.SelectData) -> tuple[Any, ...]:
        cell = layout.cell_at(*event.index) if layout is not None else None
        if cell is None:
            return gr.skip(), gr.skip(), gr.skip()
        return "attention", cell[0] + 1, str(cell[1] + 1)


def _trained(model: Model) -> TokenLayout:
    config = model.network.config
    return config.layout(config.image_height, config.image_width)
