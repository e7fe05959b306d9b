"""How the page comes to show what its link asks for, and how its link comes to say what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from vitviz.analysis.analysis import Analysis
from vitviz.errors.kinds import VitvizError
from vitviz.ui.drawing import PARTS, Drawing, Wish, changed, notice
from vitviz.ui.links import Linked, Wanted, read_link, read_map
from vitviz.ui.models import START, ModelChoice
from vitviz.ui.panels import ControlPanel, Settings, default_settings
from vitviz.ui.photo import Upload
from vitviz.ui.pictures import is_copy
from vitviz.ui.second import SecondPicker
from vitviz.ui.server.lanes import RUNS_MODEL
from vitviz.ui.sheet import Sheet
from vitviz.ui.sight import Seen, Sight

GONE = "The picture of this link is no longer kept here, or its link is not whole: drop the picture here again."


class Pending(NamedTuple):
    """What a link asks for that the page does not show yet.

    Args:
        linked: what it asks for.
        told: whether the fit and the resolution were chosen after its model, which had brought its own.
        picture, second: files of the pictures that it asks for, as far as they are there.
        gone: whether one of them is not there.
    """

    linked: Linked
    told: bool = False
    picture: Path | None = None
    second: Path | None = None
    gone: bool = False

    def awaits(self, seen: Seen) -> bool:
        """Whether its model and picture are still to come."""
        if seen.choice != self.linked.first.choice:
            return True
        return self.picture is not None and not (seen.path and is_copy(self.picture, Path(seen.path)))

    def over(self, wanted: Seen) -> Seen:
        """What is to be shown where the controls say so, which may not have come to what the link asks for yet."""
        return wanted if self.told or self.awaits(wanted) else wanted._replace(sight=self.sight_after(wanted.sight))

    def is_seen_by(self, sight: Sight) -> bool:
        """Whether fit and resolution are those that it asks for."""
        return sight == self.sight_after(sight)

    def sight_after(self, sight: Sight) -> Sight:
        """Fit and resolution: its own as far as it says."""
        return Sight(self.linked.fit or sight.fit, self.linked.resolution or sight.resolution)


class LinkFollower:
    """Restores what a link asks for, one thing after the other: picture, model, what it sees, the map, and the second.

    The map comes late: what its words mean depends on the model and on the image's tokens.
    """

    def __init__(self, panel: ControlPanel, drawing: Drawing, second: SecondPicker) -> None:
        self.panel, self.drawing, self.second, self.bench = panel, drawing, second, drawing.bench
        self.asked = gr.State(None)
        # Changes when there is something to follow; on most pages, never.
        self.due = gr.State(0)

    def connect(self, opened: Any, seen: gr.State, again: gr.State, sheet: Sheet) -> None:
        """Connect the events.

        Args:
            opened: the event behind which the model is there.
            seen: what the page shows the analysis of.
            again: another value of it has the picture analysed once more, with what the controls then say.
            sheet: of all layers and heads.
        """
        told = self.drawing.told
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        sight, second = self.panel.sight.components, [self.second.model, self.second.photo]
        outputs = [self.asked, again, *sight, *second, *self.panel.restored, *self.drawing.outputs]
        opened.then(self.count, [self.asked, self.due, seen], self.due, **quiet)
        followed = self.due.change(self._follow, [self.asked, again, seen, *told], outputs, **RUNS_MODEL, **quiet)
        self.drawing.settle_after(followed)
        followed.then(sheet.draw, sheet.inputs, sheet.outputs, **quiet)

    def count(self, asked: Pending | None, due: int, seen: Seen) -> Any:
        """Another value of ``due`` where there is something to follow."""
        return gr.skip() if asked is None or asked.awaits(seen) else due + 1

    def read(self, request: gr.Request) -> tuple[Any, ...]:
        """What a link asks for, and what can be shown of it at once: picture, fit and resolution."""
        linked = read_link(request.query_params)
        wanted = linked.first, linked.second
        picture, second = files = [self._file(each) for each in wanted]
        gone = any(each.picture is not None and file is None for each, file in zip(wanted, files, strict=True))
        asked = None if linked == Linked() else Pending(linked, False, picture, second, gone)
        photo = gr.skip() if picture is None else str(picture)
        return asked, START, self.drawing.first, photo, linked.fit or gr.skip(), linked.resolution or gr.skip()

    def _file(self, wanted: Wanted) -> Path | None:
        return None if wanted.picture is None else self.bench.pictures.file(*wanted.picture)

    def _follow(
        self,
        request: gr.Request,
        asked: Pending | None,
        again: int,
        seen: Seen,
        key: str,
        choice: ModelChoice,
        upload: Upload | None,
        *values: Any,
    ) -> tuple[Any, ...]:
        """The next that a link asks for."""
        kept = tuple(gr.skip() for _ in self.panel.restored)
        same = gr.skip(), gr.skip()
        if asked is None or upload is None or asked.awaits(seen):
            return gr.skip(), gr.skip(), *same, *same, *kept, *changed()
        sight = seen[2]
        # The analysis may be one of older controls, which the model has changed since.
        if not (asked.is_seen_by(sight) and asked.is_seen_by(self.panel.sight_of(values))):
            # Who chooses another meanwhile keeps it.
            wanted = (gr.skip(), *same) if asked.told else (again + 1, *asked.sight_after(sight))
            return asked._replace(told=True), *wanted, *same, *kept, *changed()
        said = {"notice": notice(GONE)} if asked.gone else {}
        second = asked.linked.second.model or gr.skip(), str(asked.second) if asked.second else gr.skip()
        if not asked.linked.map:
            return None, gr.skip(), *same, *second, *kept, *changed(**said)
        try:
            key, analysis = self.bench.recall(key, choice, upload, sight)
            wish = Wish(key, choice, upload, default_settings(analysis.model))
            settings, picture = self._drawn(request, analysis, wish, dict(asked.linked.map), sight)
        except VitvizError:
            return None, gr.skip(), *same, *second, *kept, *changed(**said)
        showing = self.panel.showing(analysis.model, analysis.trace.layout, settings)
        return None, gr.skip(), *same, *second, *showing, *changed(**{**dict(zip(PARTS, picture, strict=True)), **said})

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
