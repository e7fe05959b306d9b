"""The page: its layout, and which change redraws what."""

from __future__ import annotations

from typing import Any

import gradio as gr

from vitviz.attribution import METHODS
from vitviz.errors.arguments import instance
from vitviz.errors.kinds import VitvizError
from vitviz.ui.analysing import Analysing, Shown
from vitviz.ui.api import publish
from vitviz.ui.explorer import AttentionExplorer
from vitviz.ui.compare import ComparePanel
from vitviz.ui.controls import told_apart
from vitviz.ui.drawing import Drawing, Wish, notice
from vitviz.ui.files import WRITTEN
from vitviz.ui.following import LinkFollower, Pending
from vitviz.ui.jobs import Jobs
from vitviz.ui.knobs import Knobs
from vitviz.ui.links import MAPS
from vitviz.ui.models import LOST, START, ModelChoice, ModelPicker
from vitviz.ui.opening import ModelOpening
from vitviz.ui.panels import ControlPanel, default_settings, model_aside, model_card
from vitviz.ui.photo import PhotoInput, Upload
from vitviz.ui.pictures import EXAMPLES
from vitviz.ui.second import SecondPicker
from vitviz.ui.sheet import Sheet
from vitviz.ui.sight import Seen, SightPicker
from vitviz.ui.switches import SwitchPanel
from vitviz.ui.texts import markdown
from vitviz.ui.waiting import Waiting
from vitviz.ui.workbench import Workbench
from vitviz.weights import Model, load, resources

TITLE = """# vitviz
What a Vision Transformer attends to, on your own picture. **Move over any patch** to see what it looks at."""
# The map that a click on a prediction shows, where the one before is not about a class.
ABOUT_A_CLASS = "relevance"
EXPLORE = "explore"
# In the page alone, as all that holds other components: see :mod:`vitviz.ui.panels`.
SHOW_MAPS = f"() => ({{selected: '{MAPS}', __type__: 'update'}})"
OPEN_TAB = f"""() => new URLSearchParams(location.search).get("tab") === "{MAPS}"
    ? {{selected: "{MAPS}", __type__: "update"}} : {{__type__: "update"}}"""


def build_demo(model: Model | None = None, knobs: Knobs | None = None) -> gr.Blocks:
    """The app, with an example already analysed. Launch it with :func:`vitviz.ui.serve`.

    Args:
        model: with which the page opens; the bundled checkpoint where it is not given.
        knobs: what the app may take and keep; what the environment says where they are not given.

    Raises:
        CheckpointError: the bundled checkpoint cannot be loaded.
        ConfigError: a variable of the environment has no legal value, or the model is no model.
    """
    knobs = knobs or Knobs.of()
    if model is not None:
        instance("model", model, Model, "vitviz.load()")
    bench = Workbench(model or load(), knobs)
    kept = (min(3600, knobs.keep_seconds), knobs.keep_seconds)
    with gr.Blocks(title="vitviz", fill_width=True, delete_cache=kept, analytics_enabled=False) as demo:
        page = Page(bench)
        private: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        link = page.link
        demo.load(None, None, page.tabs, js=OPEN_TAB, **private)
        linked = demo.load(
            link.read,
            None,
            [link.asked, page.choice, page.drawing.key, page.photo, *page.sight.components],
            **private,
        )
        opened = [link.asked, page.wanted, page.picker.step, page.drawing.notice]
        model_opened = linked.then(page.opening.follow, link.asked, opened, **private)
        analysing = page.analysing
        link.connect(model_opened, analysing.seen, analysing.again, page.sheet)
        publish(demo, bench)
    demo.temp_file_sets.append(WRITTEN)
    # The server calls it with the session of a page that is closed.
    demo.page_closed = page.jobs.leave
    return demo


class Page:
    """The components of the page, filled with the first example, and their events."""

    def __init__(self, bench: Workbench) -> None:
        self.bench, self.jobs = bench, Jobs()
        first = resources("assets") / EXAMPLES[0]
        settings = default_settings(bench.start)
        upload = Upload(first, first.name)
        key, analysis = bench.analyze(bench.start, upload, settings.sight)

        # The page tells when it is loaded.
        self.choice = gr.State(LOST)
        self.wanted = gr.State(START)
        markdown(TITLE, elem_classes="vv-title")
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
                self.unlike = markdown(unlike, visible=bool(unlike), elem_id="vv-unlike")
                self.predictions = gr.Label(
                    bench.predictions(analysis),
                    label="Predictions",
                    num_top_classes=5,
                    show_heading=False,
                    elem_id="vv-predictions",
                )
                self.aside = markdown(model_aside(bench.start), elem_classes="vv-aside", elem_id="vv-aside")
                with gr.Accordion("About this model", open=False):
                    self.card = markdown(model_card(bench.start), elem_id="vv-card")
            with gr.Column(scale=9, min_width=320):
                self.notice = markdown(visible=False, elem_id="vv-notice")
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
                            self.panel = ControlPanel(bench.start, self.sight)
                            self.sheet = Sheet(bench, self.panel, key, analysis, settings)
        self.waiting = Waiting(self.jobs)
        self.opening = ModelOpening(bench, self.picker, self.waiting)
        shown = Shown(
            self.choice,
            self.wanted,
            self.photo,
            self.predictions,
            self.unlike,
            self.aside,
            self.card,
            self.explorer,
        )
        seen = Seen.of(START, upload, settings.sight)
        self.link = LinkFollower(self.panel, self.drawing, self.second)
        self.analysing = Analysing(
            bench, self.jobs, self.picker, self.panel, self.drawing, self.waiting, shown, self.link.asked, seen
        )
        # What is compared, and what is switched off, is of this.
        self.about = gr.State(seen)
        self.compare = ComparePanel(bench, self.jobs)
        self.switches = SwitchPanel(bench, self.jobs, analysis)
        self._connect()

    def _connect(self) -> None:
        panel, picker, drawing = self.panel, self.picker, self.drawing
        analysing, link = self.analysing, self.link
        told = [drawing.key, self.choice, self.photo, *panel.components]
        self.waiting.connect(drawing.notice)
        self.sheet.connect(drawing.connect(panel, told), told)
        self.compare.connect(panel, told)
        self.switches.connect(panel, told)
        private: dict[str, Any] = {"api_visibility": "private"}
        quick: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "concurrency_limit": 4}

        self.opening.connect(self.choice, [self.wanted, *picker.shows, drawing.notice])
        analysed, renewed = analysing.connect(told)
        now = [analysing.seen, self.about, analysing.tried, analysing.again, link.asked, link.due, *self.second.chosen]
        self.of_another = [self.about, *self.sheet.outputs, *self.compare.outputs, *self.switches.outputs]
        next_ones = [analysing.again, link.due, self.second.due, *self.of_another]
        for event in analysed:
            drawing.settle_after(event)
            event.then(self._afterwards, [*now, *told], next_ones, **quick, **private)
        beside = [self.explorer, drawing.notice]
        self.second.connect(panel, self.waiting, told[:3], beside, renewed)

        self.predictions.select(
            self._choose_class,
            [self.choice, panel.method],
            [panel.method, panel.target, drawing.notice],
            **quick,
            **private,
        )
        self.predictions.select(None, None, self.tabs, js=SHOW_MAPS, **private)
        drawing.canvas.select(self._pick, told, [panel.token, drawing.notice], **quick, **private)

    def _afterwards(
        self, seen: Seen, about: Seen, tried: Seen, again: int, asked: Pending | None, due: int, *rest: Any
    ) -> tuple[Any, ...]:
        """What comes after an analysis: its sheet, and of another picture nothing was compared or switched off yet."""
        second, told = rest[:3], rest[3:]
        counted = self.link.count(asked, due, seen), self.second.count(*second)
        first = self.analysing.once_more(tried, again, *told), *counted
        if seen == about:
            return *first, *(gr.skip() for _ in self.of_another)
        return *first, seen, *self.sheet.draw("", *told), *self.compare.cleared(), *self.switches.cleared(*told)

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

    def _choose_class(self, choice: ModelChoice, method: str, event: gr.SelectData) -> tuple[Any, ...]:
        """Ask about the class whose bar was clicked, with a map that can be about one."""
        try:
            labels = self.bench.model(choice).labels
        except VitvizError as error:
            return gr.skip(), gr.skip(), notice(error)
        index = next((index for index in range(len(labels)) if told_apart(labels, index) == event.value), None)
        if index is None:
            return gr.skip(), gr.skip(), gr.skip()
        shown = gr.skip() if METHODS[method].class_specific else ABOUT_A_CLASS
        return shown, str(index), gr.update(visible=False)
