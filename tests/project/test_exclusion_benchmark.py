"""The benchmark of rollouts without some tokens measures what it states, and its tables have the numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import vitviz
from benchmarks.exclusion import EXCLUSION_OPTIONS, NOTHING, ROLLOUTS, PictureResult, measure, record, tables
from vitviz import Model
from vitviz.attribution.exclusion import EXCLUSIONS
from vitviz.metrics.faithfulness import METRICS, RANDOM

pytestmark = pytest.mark.slow

Make = Callable[..., Model]
PHOTO = Path(__file__).parents[2] / "assets" / "coffee.jpg"
LABEL = next(iter(ROLLOUTS))


@pytest.fixture
def one_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that finds the first patch, and one that finds none."""
    monkeypatch.setitem(EXCLUSIONS, "sinks", ("sink patches", lambda trace: [trace.layout.prefix_count]))
    monkeypatch.setitem(EXCLUSIONS, "outliers", ("outlier patches", lambda trace: []))


@pytest.mark.parametrize("classes", [5, 0])
@pytest.mark.usefixtures("one_sink")
def test_areas_are_those_of_the_maps_for_the_class_or_the_likeness(classes: int, make_model: Make) -> None:
    analysis = vitviz.analyze(PHOTO, make_model(classes=classes))
    found = measure(analysis, seed=3)
    assert found.excluded_counts == {"outliers": 0, "sinks": 1}
    target = None if classes else vitviz.likeness(analysis)
    for areas in found.areas.values():
        assert set(areas) == {RANDOM, *((label, name) for label in ROLLOUTS for name in EXCLUSION_OPTIONS)}
        for label in ROLLOUTS:
            # A rule that finds no token changes nothing, not even by chance; one that finds a token does.
            assert areas[label, "outliers"] == areas[label, NOTHING]
    maps = {"mean": analysis.rollout(exclude="sinks")}
    curves = analysis.faithfulness(maps, target, metrics=["deletion"])
    assert found.areas["deletion"][LABEL, "sinks"] == pytest.approx(curves["deletion"]["mean"].area, abs=1e-6)
    assert any(areas[LABEL, "sinks"] != areas[LABEL, NOTHING] for areas in found.areas.values())


def measured(plain: float, without: float, sinks: int = 1) -> PictureResult:
    areas = {
        metric: {RANDOM: 0.5, **{(LABEL, name): without if name == "sinks" else plain for name in EXCLUSION_OPTIONS}}
        for metric in METRICS
    }
    return PictureResult(areas, {"outliers": 0, "sinks": sinks})


def test_a_difference_is_marked_where_its_interval_leaves_zero_out() -> None:
    pictures = [measured(0.5, 0.4), measured(0.6, 0.49), measured(0.7, 0.61, sinks=0)]
    text = tables(pictures)
    assert text.splitlines()[2] == f"| {LABEL} | {NOTHING} |{' 0.600 ± 0.248 |' * 5}"
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {LABEL} | sinks | 2 of 3 "))
    cells = [cell.strip() for cell in row.strip("|").split("|")][3:]
    marks = ["▲" if metric.lower_is_better else "▼" for metric in METRICS.values()]
    assert cells == [f"-0.100 ± 0.025 {mark}" for mark in marks]
    assert f"| {LABEL} | outliers | 0 of 3 |{' none |' * 5}" in text
    unsure = tables([measured(0.5, 0.4), measured(0.5, 0.6), measured(0.5, 0.5)])
    assert "▲" not in unsure and "▼" not in unsure
    assert '"sinks": 1' in record([Path("a"), Path("b"), Path("c")], pictures)
