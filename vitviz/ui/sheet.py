"""The sheet: the chosen token's attention in every layer and head."""

from __future__ import annotations

from typing import Any

import gradio as gr

from vitviz.analysis.analysis import Analysis
from vitviz.errors.kinds import VitvizError
from vitviz.ui.drawing import stamp
from vitviz.ui.models import ModelChoice
from vitviz.ui.panels import ControlPanel, Settings
from vitviz.ui.photo import Upload
from vitviz.ui.picture import PictureOutput
from vitviz.ui.workbench import Workbench


class Sheet:
    """The components of the sheet, and what changes them; a click on a cell shows its map.

    Args:
        bench, panel: of the page.
        key, analysis, settings: what it shows at first.
    """

    def __init__(self, bench: Workbench, panel: ControlPanel, key: str, analysis: Analysis, settings: Settings) -> None:
        self.bench, self.panel = bench, panel
        cells, layout = bench.sheet(analysis, settings)
        # On the page and not in a State, so that it is of what the page shows, in whatever order answers reach it.
        self.drawn = gr.Textbox(stamp(key, settings.tiled), visible="hidden", elem_id="vv-tiled")
        self.layout = gr.State(layout)
        with gr.Accordion("All layers × heads", open=True):
            self.cells = PictureOutput(
                cells,
                label="Click a cell",
                alt_text="Attention of the chosen token in every layer (rows) and head (columns)",
                format="png",
                interactive=False,
                buttons=["download", "fullscreen"],
                elem_id="vv-sheet",
            )
            panel.shared_scale.render()

    @property
    def outputs(self) -> list[Any]:
        """What :meth:`draw` changes."""
        return [self.drawn, self.cells, self.layout]

    def connect(self, mapped: Any, told: list[Any]) -> None:
        """Connect the events.

        Args:
            mapped: the event that draws the map of what the controls say.
            told: the key, the model, the picture and the controls.
        """
        panel, self.inputs = self.panel, [self.drawn, *told]
        options: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "concurrency_limit": 4}
        options["api_visibility"] = "private"
        for moved in (mapped.then, panel.shared_scale.change):
            moved(self.draw, self.inputs, self.outputs, **options)
        self.cells.select(self._choose, [self.layout], [panel.method, panel.layer, panel.head], **options)

    def draw(self, drawn: str, key: str, choice: ModelChoice, upload: Upload | None, *values: Any) -> tuple[Any, ...]:
        """The sheet of what the controls say, unless it is there: ``drawn`` is the stamp of the one that is.

        A page tells of one change more than once, and of those that it was told to make itself.
        """
        same = gr.skip(), gr.skip(), gr.skip()
        if upload is None:
            return "", None, None
        try:
            settings = self.panel.read(values)
            if drawn == stamp(key, settings.tiled):
                return same
            key, analysis = self.bench.recall(key, choice, upload, settings.sight)
            return stamp(key, settings.tiled), *self.bench.sheet(analysis, settings)
        except VitvizError:
            # The drawing of the picture says what is wrong; the sheet stays as it was.
            return same

    def _choose(self, layout: Any, event: gr.SelectData) -> tuple[Any, ...]:
        cell = layout.cell_at(*event.index) if layout is not None else None
        if cell is None:
            return gr.skip(), gr.skip(), gr.skip()
        return "attention", cell[0], str(cell[1])
