"""How the page comes to show what its link asks for, and how its link comes to say what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from vitviz.analysis import Analysis
from vitviz.errors import VitvizError
from vitviz.ui.drawing import Drawing, Wish, changed
from vitviz.ui.links import Linked, example_of, read_link, read_map
from vitviz.ui.models import START, ModelChoice
from vitviz.ui.panels import ControlPanel, Settings, default_settings
from vitviz.ui.photo import Upload
from vitviz.ui.sight import Sight
from vitviz.weights import resources

Seen = tuple[ModelChoice, str, Sight]
"""What the page shows the analysis of: a model, the path of a picture, and how the one was brought to the other."""


class Pending(NamedTuple):
    """What a link asks for that the page does not show yet.

    Args:
        linked: what it asks for.
        told: whether the fit and the resolution were chosen after its model, which had brought its own.
    """

    linked: Linked
    told: bool = False

    def awaits(self, seen: Seen) -> bool:
        """Whether its model and picture are still to come."""
        wanted, example = self.linked.model, self.linked.example
        choice, path, _ = seen
        if choice != (START if wanted is None else ModelChoice(wanted)):
            return True
        return example is not None and (not path or example_of(Upload(Path(path), Path(path).name)) != example)

    def is_seen_by(self, sight: Sight) -> bool:
        """Whether fit and resolution are those that it asks for."""
        return sight == self.sight_after(sight)

    def sight_after(self, sight: Sight) -> Sight:
        """Fit and resolution: its own as far as it says."""
        return Sight(self.linked.fit or sight.fit, self.linked.resolution or sight.resolution)


class LinkFollower:
    """Restores what a link asks for, one thing after the other: picture, model, what it sees, and the map.

    The map comes last: what its words mean depends on the model and on the image's tokens.
    """

    def __init__(self, panel: ControlPanel, drawing: Drawing) -> None:
        self.panel, self.drawing, self.bench = panel, drawing, drawing.bench
        self.asked = gr.State(None)

    def connect(self, opened: Any, seen: gr.State, tile: Any, tiled: list[Any]) -> None:
        """Connect the events.

        Args:
            opened: the event behind which the model is there.
            seen: what the page shows the analysis of.
            tile: draws the sheet of all layers and heads from what :meth:`Drawing.connect` was told of.
            tiled: the sheet.
        """
        told = self.drawing.told
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        outputs = [self.asked, *self.panel.sight.components, *self.panel.restored, *self.drawing.outputs]
        for event in (opened.then, seen.change):
            followed = event(self._follow, [self.asked, seen, *told], outputs, concurrency_id="model", **quiet)
            self.drawing.settle_after(followed)
            followed.then(tile, told, tiled, **quiet)

    def read(self, request: gr.Request) -> tuple[Any, ...]:
        """What a link asks for, and what can be shown of it at once: tab, picture, fit and resolution."""
        linked = read_link(request.query_params)
        photo = gr.skip() if linked.example is None else str(resources("assets") / linked.example)
        tab = gr.skip() if linked.tab is None else gr.update(selected=linked.tab)
        asked = None if linked == Linked() else Pending(linked)
        return asked, tab, photo, linked.fit or gr.skip(), linked.resolution or gr.skip()

    def _follow(
        self,
        request: gr.Request,
        asked: Pending | None,
        seen: Seen,
        key: str,
        choice: ModelChoice,
        upload: Upload | None,
        *values: Any,
    ) -> tuple[Any, ...]:
        """The next that a link asks for."""
        kept = tuple(gr.skip() for _ in self.panel.restored)
        if asked is None or upload is None or asked.awaits(seen):
            return gr.skip(), gr.skip(), gr.skip(), *kept, *changed()
        sight = seen[2]
        if not asked.is_seen_by(sight):
            again = (gr.skip(), gr.skip()) if asked.told else asked.sight_after(sight)
            return asked._replace(told=True), *again, *kept, *changed()
        if not asked.linked.map:
            return None, gr.skip(), gr.skip(), *kept, *changed()
        try:
            key, analysis = self.bench.recall(key, choice, upload, sight)
            wish = Wish(key, choice, upload, default_settings(analysis.model))
            settings, picture = self._drawn(request, analysis, wish, dict(asked.linked.map), sight)
        except VitvizError:
            return None, gr.skip(), gr.skip(), *kept, *changed()
        showing = self.panel.showing(analysis.model, analysis.trace.layout, settings)
        return None, gr.skip(), gr.skip(), *showing, *picture

    def _drawn(
        self, request: gr.Request, analysis: Analysis, wish: Wish, said: dict[str, str], sight: Sight
    ) -> tuple[Settings, tuple[Any, ...]]:
        """The map that a link asks for; without its parameters where they contradict each other.

        Raises:
            VitvizError: it cannot be drawn without them either.
        """
        model, layout = analysis.model, analysis.trace.layout
        plain = {name: word for name, word in said.items() if name in ("method", "words")}
        settings = read_map(said, model, layout, sight)
        try:
            return settings, self.drawing.fresh(request, analysis, wish.of(settings))
        except VitvizError:
            settings = read_map(plain, model, layout, sight)
            return settings, self.drawing.fresh(request, analysis, wish.of(settings))
