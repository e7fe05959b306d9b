"""The page: its layout, and which change redraws what."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gradio as gr

from vitviz.errors import VitvizError
from vitviz.ui.panels import ControlPanel, default_settings, model_card
from vitviz.ui.photo import PhotoInput, Preview, Upload
from vitviz.ui.workbench import Workbench
from vitviz.weights import Model, load, resources

EXAMPLES = ("chelsea.jpg", "rocket.jpg", "coffee.jpg", "astronaut.jpg")
KEPT_SECONDS = 12 * 3600
TITLE = """# vitviz
What a Vision Transformer attends to, on your own picture. **Click any patch** to see what it looks at."""
EMPTY = "Drop a picture on the left, paste one, take one with the camera, or choose an example."


def build_demo(model: Model | None = None) -> gr.Blocks:
    """The app for one model, with an example already analysed. Launch it with :func:`launch_options`.

    Args:
        model: the bundled checkpoint where it is not given.

    Raises:
        CheckpointError: the bundled checkpoint cannot be loaded.
    """
    bench = Workbench(model or load())
    with gr.Blocks(title="vitviz", fill_width=True, delete_cache=(3600, KEPT_SECONDS), analytics_enabled=False) as demo:
        Page(bench)
    return demo


def launch_options() -> dict[str, Any]:
    """What ``Blocks.launch`` needs for the look of the page; nothing of it is fetched from anywhere."""
    theme = gr.themes.Base(
        primary_hue="indigo",
        neutral_hue="slate",
        font=("system-ui", "sans-serif"),
        font_mono=("ui-monospace", "monospace"),
    )
    css = Path(__file__).with_name("style.css").read_text()
    return {"theme": theme, "css": css, "ssr_mode": False, "max_file_size": "64mb", "footer_links": []}


class Page:
    """The components of the page, filled with the first example, and their events."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        first = resources("assets") / EXAMPLES[0]
        settings = default_settings(bench.model)
        key, analysis = bench.analyze(Upload(first, first.name), settings.fit)
        shown = bench.picture(analysis, settings)
        cells, sheet_layout = bench.sheet(analysis, settings)

        self.key = gr.State(key)
        self.sheet_layout = gr.State(sheet_layout)
        gr.Markdown(TITLE, elem_classes="vv-title")
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=250):
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
                self.predictions = gr.Label(
                    bench.predictions(analysis),
                    label="Predictions",
                    num_top_classes=5,
                    show_heading=False,
                    elem_id="vv-predictions",
                )
                if bench.model.labels:
                    gr.Markdown(f"This model knows only: {', '.join(bench.model.labels)}.", elem_classes="vv-aside")
                with gr.Accordion("About this model", open=False):
                    gr.Markdown(model_card(bench.model))
            with gr.Column(scale=5, min_width=320):
                self.notice = gr.Markdown(visible=False, elem_id="vv-notice")
                self.canvas = gr.Image(
                    shown.overlay,
                    label="Attention",
                    alt_text="The picture with the attention of the chosen token over it",
                    format="webp",
                    interactive=False,
                    buttons=["download", "fullscreen"],
                    elem_id="vv-canvas",
                )
                self.legend = gr.HTML(shown.legend, elem_id="vv-legend")
                self.caption = gr.Markdown(shown.caption, elem_id="vv-caption")
            with gr.Column(scale=4, min_width=320):
                self.panel = ControlPanel(bench.model)
                with gr.Accordion("All layers × heads", open=True):
                    self.sheet = gr.Image(
                        cells,
                        label="Click a cell",
                        alt_text="Attention of the chosen token in every layer (rows) and head (columns)",
                        format="png",
                        interactive=False,
                        buttons=["download", "fullscreen"],
                        elem_id="vv-sheet",
                    )
                    self.panel.shared_scale.render()
        self._connect()

    def _connect(self) -> None:
        panel, told = self.panel, [self.key, self.photo, *self.panel.components]
        drawn = [self.key, self.canvas, self.caption, self.legend, self.notice]
        tiled = [self.sheet, self.sheet_layout]
        private: dict[str, Any] = {"api_visibility": "private"}
        quick: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "concurrency_limit": 4}

        analysed = gr.on(
            [self.photo.change, panel.fit.change],
            self._analyze,
            [self.photo, *panel.components],
            [self.key, self.photo, panel.token, self.predictions, *drawn[1:]],
            show_progress="minimal",
            show_progress_on=self.canvas,
            trigger_mode="always_last",
            concurrency_limit=1,
            concurrency_id="model",
            **private,
        )
        analysed.then(self._tile, told, tiled, **quick, **private)
        gr.on([part.change for part in panel.drawing], self._draw, told, drawn, **quick, **private)
        gr.on([part.change for part in panel.tiling], self._tile, told, tiled, **quick, **private)
        self.canvas.select(self._pick, told, [panel.token, self.notice], **quick, **private)
        self.sheet.select(
            self._choose_cell, [self.sheet_layout], [panel.method, panel.layer, panel.head], **quick, **private
        )

    def _analyze(self, upload: Upload | None, *values: Any) -> tuple[Any, ...]:
        if upload is None:
            return "", gr.skip(), gr.skip(), None, None, EMPTY, "", gr.update(visible=False)
        try:
            settings = self.panel.read(values)
            key, analysis = self.bench.analyze(upload, settings.fit)
            menu, settings = self.panel.token_menu(analysis.trace.layout, settings)
            shown = self.bench.picture(analysis, settings)
        except VitvizError as error:
            return *(gr.skip() for _ in range(7)), _notice(f"{error}. Below is still the picture before.")
        preview = gr.skip() if upload.shown else Preview(analysis.prepared.image, upload)
        predictions, hidden = self.bench.predictions(analysis), gr.update(visible=False)
        return key, preview, menu, predictions, shown.overlay, shown.caption, shown.legend, hidden

    def _draw(self, key: str, upload: Upload | None, *values: Any) -> tuple[Any, ...]:
        if upload is None:
            return tuple(gr.skip() for _ in range(5))
        try:
            settings = self.panel.read(values)
            key, analysis = self.bench.recall(key, upload, settings.fit)
            shown = self.bench.picture(analysis, settings)
        except VitvizError as error:
            return key, gr.skip(), gr.skip(), gr.skip(), _notice(error)
        return key, shown.overlay, shown.caption, shown.legend, gr.update(visible=False)

    def _tile(self, key: str, upload: Upload | None, *values: Any) -> tuple[Any, ...]:
        if upload is None:
            return None, None
        try:
            settings = self.panel.read(values)
            _, analysis = self.bench.recall(key, upload, settings.fit)
            return self.bench.sheet(analysis, settings)
        except VitvizError:
            # The drawing of the picture says what is wrong; the sheet stays as it was.
            return gr.skip(), gr.skip()

    def _pick(self, event: gr.SelectData, key: str, upload: Upload | None, *values: Any) -> tuple[Any, ...]:
        if upload is None:
            return gr.skip(), gr.skip()
        try:
            _, analysis = self.bench.recall(key, upload, self.panel.read(values).fit)
        except VitvizError as error:
            return gr.skip(), _notice(error)
        patch = self.bench.patch_at(analysis, *event.index)
        if patch is None:
            return gr.skip(), _notice("The model did not see this part of the picture: it was cut off before.")
        return self.panel.token_value(patch), gr.update(visible=False)

    def _choose_cell(self, layout: Any, event: gr.SelectData) -> tuple[Any, ...]:
        cell = layout.cell_at(*event.index) if layout is not None else None
        if cell is None:
            return gr.skip(), gr.skip(), gr.skip()
        return "attention", cell[0] + 1, str(cell[1] + 1)


def _notice(message: object) -> dict[str, Any]:
    """A message as the page shows it: to the letter, whatever the name of a file contains."""
    return gr.update(value=re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", str(message)), visible=True)
