"""The sheet of all layers and heads: drawn when it is another one, once; and how its events are asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from vitviz import Model
from vitviz.ui import build_demo
from vitviz.ui.models import START
from vitviz.ui.panels import ControlPanel, default_settings
from vitviz.ui.photo import Upload
from vitviz.ui.sheet import Sheet
from vitviz.ui.sight import SightPicker
from vitviz.ui.workbench import Workbench

Make = Callable[..., Model]
SAME_SHEET = (gr.skip(),) * 3


class Visit:
    """A sheet on a page, and what its controls say."""

    def __init__(self, bench: Workbench, upload: Upload) -> None:
        settings = default_settings(bench.start)
        self.key, analysis = bench.analyze(bench.start, upload, settings.sight)
        with gr.Blocks():
            self.panel = ControlPanel(bench.start, SightPicker(bench.start))
            self.sheet = Sheet(bench, self.panel, self.key, analysis, settings)
        self.said = {id(part): part.value for part in self.panel.components}
        self.stamp, self.upload = self.sheet.drawn.value, upload

    def drawn(self, part: Any = None, value: Any = None) -> tuple[Any, ...]:
        self.said |= {id(part): value}
        values = [self.said[id(part)] for part in self.panel.components]
        return self.sheet.draw(self.stamp, self.key, START, self.upload, *values)


@pytest.fixture
def visit(make_model: Make, picture: Upload) -> Visit:
    return Visit(Workbench(make_model()), picture)


def test_a_sheet_is_drawn_when_it_is_another_one(visit: Visit) -> None:
    panel = visit.panel
    assert visit.drawn() == SAME_SHEET
    changes = [(panel.token, "1,2"), (panel.layer, 1), (panel.head, "2"), (panel.shared_scale, True)]
    for part, value in [*changes, (panel.colormap, "gray"), (panel.opacity, 0.3), (panel.smooth, True)]:
        stamp, cells, layout = visit.drawn(part, value)
        assert stamp != visit.stamp and cells.size[0] > 1 and layout.cell_at(0, 0) is None
        visit.stamp = stamp
        assert visit.drawn() == SAME_SHEET
    # The map's own controls, and the grid, are not of the sheet.
    assert visit.drawn(panel.grid, False) == visit.drawn(panel.method, "rollout") == SAME_SHEET


def test_without_a_picture_there_is_none_and_with_a_wrong_control_the_one_before(visit: Visit) -> None:
    assert visit.drawn(visit.panel.layer, None) == SAME_SHEET
    visit.upload = None
    assert visit.drawn() == ("", None, None)


def test_a_cell_chooses_its_layer_and_head(visit: Visit) -> None:
    layout = visit.sheet.layout.value
    x, y = layout.left + 2.5 * layout.cell_width, layout.top + 1.5 * layout.cell_height
    inside, beside, none = (SimpleNamespace(index=at) for at in ((x, y), (0, 0), (x, y)))
    assert visit.sheet._choose(layout, inside) == ("attention", 1, "2")
    assert visit.sheet._choose(layout, beside) == visit.sheet._choose(None, none) == SAME_SHEET


def test_no_event_has_two_listeners_that_wait() -> None:
    """Gradio asks all of them once more where one has waited: two that ask the server would go on for ever."""
    waiting = Counter(
        target
        for event in build_demo().fns.values()
        for target in event.targets
        if event.fn is not None and event.trigger_mode == "always_last" and target[1] != "then"
    )
    assert waiting and max(waiting.values()) == 1


def test_what_holds_other_components_is_changed_in_the_page_alone() -> None:
    """Gradio copies all that is in what an event of the server may change, with every event that comes after."""
    demo = build_demo()
    changed = {part for event in demo.fns.values() if event.fn is not None for part in event.outputs}
    assert changed and [part for part in changed if getattr(part, "children", [])] == []
