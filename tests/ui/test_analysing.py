"""What runs a model for the page: at once, or among what takes long, where it can be stopped and superseded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from PIL import Image

import vitviz.ui.workbench
from tests.ui.server.test_lanes import in_a_thread
from vitviz import Model
from vitviz.ui.analysing import NOTHING
from vitviz.ui.demo import Page
from vitviz.ui.drawing import PARTS
from vitviz.ui.following import Pending
from vitviz.ui.links import Linked, Wanted, read_link
from vitviz.ui.models import LOST, START, ModelChoice
from vitviz.ui.photo import Upload
from vitviz.ui.sight import Seen, Sight
from vitviz.ui.texts import plain
from vitviz.ui.waiting import ANALYSIS
from vitviz.ui.workbench import Workbench

Make = Callable[..., Model]
ANNA: Any = SimpleNamespace(session_hash="anna")
SKIPPED = gr.skip()
OTHER, THIRD = ModelChoice("other"), ModelChoice("third")
GONE = ModelChoice("gone")


def silent(*state: Any, **said: Any) -> None:
    """In place of Gradio's progress."""


class Visitor:
    """A visitor's page: what its components hold, and the events that run a model."""

    def __init__(self, bench: Workbench, upload: Upload) -> None:
        self.bench = bench
        with gr.Blocks():
            self.page = Page(bench)
        self.analysing, self.jobs = self.page.analysing, self.page.jobs
        shown, drawing = self.analysing.shown, self.page.drawing
        self.names = {id(getattr(drawing, name)): name for name in PARTS}
        self.names |= {id(getattr(shown, name)): name for name in vars(shown)}
        self.names |= {id(getattr(self.analysing, name)): name for name in ("seen", "tried", "again")}
        self.names[id(self.page.picker.menu)] = "menu"
        self.values = {id(part): part.value for part in self.page.panel.components}
        self.holds: dict[str, Any] = {"choice": START, "wanted": START, "photo": upload, "key": "", "again": 0}
        self.holds |= {"seen": NOTHING, "tried": NOTHING, "switching": "", "late": "", "asked": None}

    @property
    def told(self) -> list[Any]:
        values = [self.values[id(part)] for part in self.page.panel.components]
        return [self.holds["key"], self.holds["choice"], self.holds["photo"], *values]

    def applied(self, parts: list[Any], answer: tuple[Any, ...]) -> dict[str, Any]:
        """What an event changes on the page, as far as it has a name here."""
        changes = {
            self.names[id(part)]: each
            for part, each in zip(parts, answer, strict=True)
            if id(part) in self.names and each != SKIPPED
        }
        self.holds |= {name: each for name, each in changes.items() if name != "photo"}
        for part, each in zip(parts, answer, strict=True):
            if id(part) in self.values and each != SKIPPED and "value" in each:
                self.values[id(part)] = each["value"]
        return changes

    def analyze(self) -> dict[str, Any]:
        inputs = (
            self.holds["switching"],
            self.holds["asked"],
            self.holds["tried"],
            self.holds["seen"],
            *self.told[1:],
        )
        switching, late, _, *rest = self.analysing._analyze(ANNA, silent, *inputs)
        return self._with_tickets(switching, late, self.applied(self.analysing.of_page, tuple(rest)))

    def analyze_late(self) -> dict[str, Any]:
        inputs = self.holds["late"], self.holds["asked"], self.holds["seen"], *self.told[1:]
        _, *rest = self.analysing._analyze_late(ANNA, silent, *inputs)
        return self.applied(self.analysing.of_page, tuple(rest))

    def switch(self, wanted: ModelChoice) -> dict[str, Any]:
        self.holds["wanted"] = wanted
        inputs = self.holds["switching"], wanted, *self.told
        switching, *rest = self.analysing._switch(ANNA, silent, *inputs)
        parts = [*self.analysing.of_model, *self.analysing.of_page]
        return self._with_tickets(switching, SKIPPED, self.applied(parts, tuple(rest)))

    def switch_late(self, progress: Callable[..., None] = silent) -> dict[str, Any]:
        inputs = self.holds["switching"], self.holds["wanted"], *self.told
        answer = self.analysing._switch_late(ANNA, progress, *inputs)
        return self.applied([*self.analysing.of_model, *self.analysing.of_page], answer)

    def renew(self, name: str = START.source) -> dict[str, Any]:
        late, seen, wanted, choice, key, explorer, said = self.analysing._renew(
            ANNA, self.holds["switching"], name, *self.told
        )
        found = {"late": late, "seen": seen, "wanted": wanted, "choice": choice, "key": key}
        found |= {"explorer": explorer, "notice": said}
        changes = {name: each for name, each in found.items() if each != SKIPPED}
        self.holds |= changes
        return changes

    def once_more(self) -> bool:
        answer = self.analysing.once_more(self.holds["tried"], self.holds["again"], *self.told)
        return bool(answer != SKIPPED)

    def _with_tickets(self, switching: Any, late: Any, changes: dict[str, Any]) -> dict[str, Any]:
        tickets = {name: each for name, each in (("switching", switching), ("late", late)) if each != SKIPPED}
        self.holds |= tickets
        return changes | tickets


@pytest.fixture
def visitor(make_model: Make, picture: Upload, monkeypatch: pytest.MonkeyPatch) -> Visitor:
    """On the page of a server with three models, all small."""
    bench = Workbench(make_model())
    models = {START: bench.start, OTHER: make_model(depth=5), THIRD: make_model(heads=2)}

    def model(choice: ModelChoice, report: Any = None) -> Model:
        if choice not in models:
            raise vitviz.CheckpointError(f"{choice.source}: no such model")
        return models[choice]

    monkeypatch.setattr(bench, "model", model)
    found = Visitor(bench, picture)
    found.analyze()
    return found


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of now on, every analysis is a large one."""
    monkeypatch.setattr(vitviz.ui.workbench, "LARGE_FLOPS", 0)


@pytest.fixture
def another(tmp_path: Path) -> Upload:
    Image.effect_noise((48, 32), 80).convert("RGB").save(tmp_path / "another.png")
    return Upload(tmp_path / "another.png", "another.png")


def of(choice: ModelChoice, upload: Upload) -> Seen:
    return Seen.of(choice, upload, Sight("squash"))


def test_a_small_model_is_switched_to_at_once(visitor: Visitor, picture: Upload) -> None:
    changes = visitor.switch(OTHER)
    assert changes["choice"] == OTHER and changes["seen"] == of(OTHER, picture) and "switching" not in changes
    assert changes["explorer"].analysis.trace.layers == 5
    # A state that is set to what it was tells of no change; but a page may tell of one twice.
    assert visitor.switch(OTHER) == {}


@pytest.mark.usefixtures("large")
def test_a_large_model_waits_in_a_place_of_its_own(visitor: Visitor, picture: Upload) -> None:
    changes = visitor.switch(OTHER)
    # Nothing else has changed: until it is there, the page shows the model before.
    assert set(changes) == {"switching", "notice"} and visitor.holds["choice"] == START
    assert not visitor.once_more()
    changes = visitor.switch_late()
    assert changes["choice"] == OTHER and changes["seen"] == of(OTHER, picture)
    assert visitor.jobs.asked("anna", ANALYSIS) is None


@pytest.mark.usefixtures("large")
def test_another_picture_is_seen_by_the_model_that_comes(visitor: Visitor, another: Upload) -> None:
    visitor.switch(OTHER)
    first = visitor.holds["switching"]
    visitor.holds["photo"] = another
    changes = visitor.analyze()
    assert set(changes) == {"switching", "tried"} and changes["switching"] != first
    assert not visitor.once_more()
    # The one that was asked for first is of no use any more, and changes nothing.
    last, visitor.holds["switching"] = visitor.holds["switching"], first
    assert visitor.switch_late() == {}
    visitor.holds["switching"] = last
    changes = visitor.switch_late()
    assert changes["seen"] == of(OTHER, another) and changes["choice"] == OTHER


@pytest.mark.usefixtures("large")
def test_a_third_model_supersedes_the_second_while_it_runs(visitor: Visitor, picture: Upload) -> None:
    visitor.switch(OTHER)
    running, release, ended = threading.Event(), threading.Event(), []

    def hold(*state: Any, **said: Any) -> None:
        running.set()
        assert release.wait(30)

    thread = in_a_thread(lambda: ended.append(visitor.switch_late(hold)))
    assert running.wait(30)
    visitor.switch(THIRD)
    release.set()
    thread.join(30)
    assert ended == [{}] and visitor.holds["wanted"] == THIRD
    assert visitor.switch_late()["seen"] == of(THIRD, picture)


@pytest.mark.usefixtures("large")
def test_a_model_that_is_stopped_leaves_the_one_before(visitor: Visitor) -> None:
    visitor.switch(OTHER)
    assert visitor.page.waiting._stop(ANNA)["visible"]
    changes = visitor.switch_late()
    assert changes["wanted"] == START and "choice" not in changes and "model before" in changes["notice"]["value"]
    assert changes["menu"]["value"] == START.source
    # The state that is set back tells of a change, which ends nothing that was begun since.
    ticket = visitor.jobs.ask("anna", ANALYSIS)
    assert visitor.switch(START) == {} and visitor.jobs.asked("anna", ANALYSIS) == ticket


@pytest.mark.usefixtures("large")
def test_who_goes_back_to_the_model_before_ends_the_one_that_comes(visitor: Visitor) -> None:
    visitor.switch(OTHER)
    assert visitor.switch(START) == {} and visitor.jobs.asked("anna", ANALYSIS) is None
    assert visitor.switch_late()["wanted"] == START


def test_a_model_that_fails_leaves_the_picture_to_the_one_before(visitor: Visitor, another: Upload) -> None:
    visitor.holds["photo"] = another
    changes = visitor.switch(GONE)
    assert plain("gone: no such model") in changes["notice"]["value"] and changes["wanted"] == START
    # It was chosen meanwhile, and nobody has analysed it.
    assert visitor.once_more() and visitor.analyze()["seen"] == of(START, another)
    assert not visitor.once_more()


@pytest.mark.usefixtures("large")
def test_without_a_picture_a_model_needs_no_place(visitor: Visitor) -> None:
    visitor.holds["photo"] = None
    changes = visitor.switch(OTHER)
    assert changes["choice"] == OTHER and changes["seen"] == NOTHING and "switching" not in changes
    assert not visitor.once_more()


@pytest.mark.usefixtures("large")
def test_a_large_analysis_waits_and_what_was_tried_is_known(visitor: Visitor, another: Upload) -> None:
    visitor.holds["photo"] = another
    assert set(visitor.analyze()) == {"late", "tried", "notice"}
    assert not visitor.once_more()
    assert visitor.analyze_late()["seen"] == of(START, another)
    # By the button; it is not begun anew.
    visitor.values[id(visitor.page.sight.fit)] = "crop"
    visitor.analyze()
    assert visitor.page.waiting._stop(ANNA)["visible"] and visitor.analyze_late() == {}
    assert not visitor.once_more()


def test_what_a_page_told_of_too_late_is_analysed_once_more(visitor: Visitor, another: Upload) -> None:
    before = visitor.told[2]
    visitor.holds["photo"] = another
    assert visitor.once_more() and visitor.analyze()["seen"] == of(START, another)
    # An event that tells an old value may be the last.
    visitor.holds["photo"] = before
    visitor.analyze()
    visitor.holds["photo"] = another
    assert visitor.once_more() and visitor.analyze()["tried"] == of(START, another)
    assert not visitor.once_more()


def test_what_a_link_asks_for_is_analysed_before_its_controls_have_come(visitor: Visitor, picture: Upload) -> None:
    wanted = of(START, picture)._replace(sight=Sight("crop", "32"))
    visitor.holds["asked"] = Pending(read_link({"fit": "crop", "resolution": "32"}))
    # One after the other, as Gradio tells of values that change at once.
    assert visitor.analyze()["seen"] == wanted
    visitor.values[id(visitor.page.sight.fit)] = "crop"
    assert visitor.analyze() == {"tried": wanted}
    visitor.values[id(visitor.page.sight.resolution)] = "32"
    visitor.holds["asked"] = None
    assert visitor.analyze() == {"tried": wanted} and not visitor.once_more()


@pytest.mark.usefixtures("large")
def test_so_it_is_where_it_takes_long(visitor: Visitor, picture: Upload) -> None:
    wanted = of(START, picture)._replace(sight=Sight("crop", "32"))
    visitor.holds["asked"] = Pending(read_link({"fit": "crop", "resolution": "32"}))
    assert visitor.analyze()["tried"] == wanted
    assert visitor.analyze_late()["seen"] == wanted


def test_what_a_link_asks_for_and_cannot_be_is_tried_once(visitor: Visitor, picture: Upload) -> None:
    visitor.holds["asked"] = Pending(read_link({"resolution": "33"}))
    visitor.values[id(visitor.page.sight.resolution)] = "33"
    changes = visitor.analyze()
    assert "33" in changes["notice"]["value"] and "seen" not in changes and not visitor.once_more()
    visitor.values[id(visitor.page.sight.resolution)] = "32"
    assert visitor.analyze()["seen"] == of(START, picture)._replace(sight=Sight("squash", "32"))


@pytest.mark.parametrize("changes", [{"told": True}, {"picture": Path("of_the_link.png")}])
def test_a_link_says_nothing_of_what_was_chosen_since(
    visitor: Visitor, another: Upload, changes: dict[str, Any]
) -> None:
    visitor.holds |= {"asked": Pending(read_link({"fit": "crop"}))._replace(**changes), "photo": another}
    assert visitor.analyze()["seen"] == of(START, another)
    other = Pending(Linked(first=Wanted(OTHER.source), fit="crop"))
    assert other.over(of(START, another)) == of(START, another) and other.over(of(OTHER, another)).sight.fit == "crop"


@pytest.mark.usefixtures("large")
def test_a_picture_that_is_removed_is_none_for_the_model_that_comes(visitor: Visitor) -> None:
    visitor.switch(OTHER)
    visitor.holds["photo"] = None
    assert visitor.analyze()["tried"] == NOTHING
    changes = visitor.switch_late()
    assert changes["choice"] == OTHER and changes["seen"] == NOTHING


def test_a_file_that_is_no_picture_is_tried_once(visitor: Visitor, tmp_path: Path) -> None:
    (tmp_path / "no.png").write_bytes(b"no picture")
    visitor.holds["photo"] = Upload(tmp_path / "no.png", "no.png")
    changes = visitor.analyze()
    assert "seen" not in changes and "Below is still the picture before" in changes["notice"]["value"]
    assert not visitor.once_more()


def test_an_analysis_that_is_gone_is_made_again_at_once(visitor: Visitor) -> None:
    changes = visitor.renew()
    assert visitor.bench.cache.get(changes["key"]) is changes["explorer"].analysis and "late" not in changes


@pytest.mark.usefixtures("large")
def test_a_large_one_that_is_gone_waits_in_its_place(visitor: Visitor, picture: Upload) -> None:
    # As after a restart, where the page alone knows its model.
    visitor.holds |= {"choice": LOST, "wanted": LOST}
    changes = visitor.renew(OTHER.source)
    assert (changes["choice"], changes["wanted"], changes["seen"]) == (OTHER, OTHER, NOTHING)
    assert visitor.analyze_late()["seen"] == of(OTHER, picture)


@pytest.mark.usefixtures("large")
def test_what_a_switch_renews_anyway_is_not_made_again(visitor: Visitor) -> None:
    visitor.switch(OTHER)
    assert visitor.renew() == {}
    assert visitor.switch_late()["choice"] == OTHER


def test_what_is_made_again_forgets_no_model_that_was_chosen_meanwhile(visitor: Visitor) -> None:
    visitor.holds["wanted"] = OTHER
    assert not {"wanted", "choice"} & visitor.renew().keys()
