"""Maps that take long, as the page asks for them: wished, computed in a job, stopped, and known once they are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from PIL import Image

from vitviz import Model, save_checkpoint
from vitviz.progress import Progress
from vitviz.ui.drawing import PARTS, Drawing, Wish
from vitviz.ui.jobs import Jobs, Stopped
from vitviz.ui.models import START, ModelChoice
from vitviz.ui.panels import ControlPanel, Settings, default_settings
from vitviz.ui.photo import Upload
from vitviz.ui.sight import Sight, SightPicker
from vitviz.ui.texts import plain
from vitviz.ui.workbench import Workbench

ANNA: Any = SimpleNamespace(session_hash="anna")
SKIPPED = gr.skip()


class Visit:
    """A visitor's page: what its controls say, what it shows, and what the events of it do."""

    def __init__(self, bench: Workbench, upload: Upload) -> None:
        self.bench, self.jobs, self.upload = bench, Jobs(), upload
        settings = default_settings(bench.start)
        key, analysis = bench.analyze(bench.start, upload, settings.sight)
        wish = Wish(key, START, upload, settings)
        with gr.Blocks():
            self.drawing = Drawing(bench, self.jobs, analysis, wish, gr.Markdown(visible=False))
            self.panel = ControlPanel(bench.start, SightPicker(bench.start))
            self.drawing.connect(
                self.panel, [self.drawing.key, gr.State(START), gr.State(upload), *self.panel.components]
            )
        self.analysis = analysis
        self.controls: dict[int, Any] = {id(part): part.value for part in self.panel.components}
        self.shown: dict[str, Any] = {"key": key, "drawn": wish.stamp, "wish": None}

    @property
    def inputs(self) -> list[Any]:
        values = [self.controls[id(part)] for part in self.panel.components]
        return [ANNA, self.shown["wish"], self.shown["drawn"], self.shown["key"], START, self.upload, *values]

    def applied(self, answer: tuple[Any, ...]) -> dict[str, Any]:
        """What an event changes on the page."""
        changes = {name: each for name, each in zip(PARTS, answer, strict=True) if each != SKIPPED}
        self.shown |= changes
        return changes

    def choose(self, part: Any, value: Any) -> dict[str, Any]:
        self.controls[id(part)] = value
        return self.applied(self.drawing._draw(*self.inputs))

    def settle(self) -> dict[str, Any]:
        return self.applied(self.drawing._settle(*self.inputs))

    def compute(self, wish: Wish | None = None) -> dict[str, Any]:
        return self.applied(self.drawing._compute(wish or self.shown["wish"], ANNA, lambda *state, **said: None))


@pytest.fixture
def upload(tmp_path: Path) -> Upload:
    Image.effect_noise((48, 32), 80).convert("RGB").save(tmp_path / "noise.png")
    return Upload(tmp_path / "noise.png", "noise.png")


@pytest.fixture
def visit(make_model: Callable[..., Model], upload: Upload) -> Visit:
    return Visit(Workbench(make_model()), upload)


def test_a_quick_map_is_drawn_at_once_and_one_that_takes_long_in_its_job(visit: Visit) -> None:
    panel = visit.panel
    drawn = visit.choose(panel.method, "rollout")
    assert "rollout" in drawn["caption"] and 'analysis.map("rollout"' in drawn["code"]
    assert drawn["link"] == "tab=maps&method=rollout"
    wished = visit.choose(panel.method, "occlusion")
    assert set(wished) == {"wish", "notice", "stop"} and wished["stop"]["visible"]
    assert visit.settle() == {"stop": gr.update(visible=True)}
    done = visit.compute()
    assert "Occlusion for class" in done["caption"] and not done["stop"]["visible"]
    assert visit.settle() == {"stop": gr.update(visible=False)}


def test_a_map_that_is_known_is_drawn_at_once_in_other_colours(visit: Visit) -> None:
    panel = visit.panel
    visit.choose(panel.method, "occlusion")
    visit.compute()
    other = visit.choose(panel.colormap, "viridis")
    assert "wish" not in other and "Occlusion for class" in other["caption"]
    visit.choose(panel.method, "attention")
    assert "Occlusion for class" in visit.choose(panel.method, "occlusion")["caption"]
    # About another class it is another map.
    assert "wish" in visit.choose(panel.target, "2")


def test_other_colours_leave_a_job_running_and_another_map_ends_it(visit: Visit) -> None:
    panel = visit.panel
    ticket = visit.choose(panel.method, "occlusion")["wish"].ticket
    assert visit.choose(panel.opacity, 0.5) == {} and visit.jobs.asked("anna", "draw") == ticket
    visit.compute()
    # Drawn as it was wished, and then as the controls say.
    assert "caption" in visit.settle()
    wish = visit.choose(panel.method, "integrated_gradients")["wish"]
    visit.choose(panel.method, "rollout")
    assert visit.compute(wish) == {}
    assert visit.jobs.asked("anna", "draw") is None


def test_the_newer_wish_counts_while_the_one_before_runs(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    panel, picture = visit.panel, visit.bench.picture

    def interrupted(analysis: Any, settings: Settings, report: Any = None) -> Any:
        if settings.method == "occlusion":
            visit.choose(panel.method, "integrated_gradients")
            report(Progress(1, 25))
            pytest.fail("it has been replaced")
        return picture(analysis, settings, report)

    monkeypatch.setattr(visit.bench, "picture", interrupted)
    first = visit.choose(panel.method, "occlusion")["wish"]
    assert visit.compute(first) == {}
    assert visit.settle() == {"stop": gr.update(visible=True)}
    assert "Integrated gradients" in visit.compute()["caption"]


def test_what_was_stopped_stays_so_until_a_control_moves(visit: Visit) -> None:
    panel = visit.panel
    wish = visit.choose(panel.method, "occlusion")["wish"]
    said, stop = visit.drawing._stop(ANNA)
    assert "Stopped" in said["value"] and not stop["visible"]
    assert visit.compute(wish) == {}
    assert visit.settle() == {"stop": gr.update(visible=False)}
    # Nothing runs any more.
    assert visit.drawing._stop(ANNA)[0] == SKIPPED
    assert "wish" in visit.choose(panel.grid, False)


def test_another_picture_shows_a_quick_map_until_its_own_is_there(visit: Visit) -> None:
    panel, drawing = visit.panel, visit.drawing
    old = visit.choose(panel.method, "occlusion")["wish"]
    key, analysis = visit.bench.analyze(visit.bench.start, visit.upload, Sight("squash"))
    changes = visit.applied(drawing.fresh(ANNA, analysis, replace(old, key=key, ticket="")))
    assert changes["key"] == key and "looks at" in changes["caption"] and changes["stop"]["visible"]
    assert visit.compute(old) == {}
    assert visit.settle() == {"stop": gr.update(visible=True)}
    assert "Occlusion" in visit.compute()["caption"] and visit.shown["key"] == key


def test_an_analysis_that_has_left_the_cache_is_made_again_for_its_map(visit: Visit) -> None:
    wish = visit.choose(visit.panel.method, "occlusion")["wish"]
    visit.bench.cache.drop(visit.bench.start)
    done = visit.compute()
    assert "Occlusion" in done["caption"] and done["key"] != wish.key
    assert visit.settle() == {"stop": gr.update(visible=False)}


def test_an_error_of_a_job_is_told(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    visit.choose(visit.panel.method, "attention_flow")
    monkeypatch.setattr(visit.drawing, "_analysed", lambda wish: visit.bench.model(ModelChoice("nothing")))
    told = visit.compute()
    assert set(told) == {"notice", "stop"} and plain("'nothing'") in told["notice"]["value"]
    assert visit.jobs.asked("anna", "draw") is None


def test_a_stop_between_two_reports_ends_the_computation(visit: Visit) -> None:
    settings = default_settings(visit.bench.start)
    told: list[Progress] = []

    def report(state: Progress) -> None:
        told.append(state)
        raise Stopped

    with pytest.raises(Stopped):
        visit.bench.picture(visit.analysis, replace(settings, method="attention_flow"), report)
    assert len(told) == 1 and visit.bench.takes_long(visit.analysis, replace(settings, method="attention_flow"))


def test_models_that_are_opened_compute_as_the_one_of_the_start(
    make_model: Callable[..., Model], tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "own.safetensors", make_model())
    start = make_model()
    start.network.set_precision("bfloat16")
    opened = Workbench(start).model(ModelChoice("", (str(tmp_path / "own.safetensors"),)))
    assert opened.network.precision == start.network.precision
