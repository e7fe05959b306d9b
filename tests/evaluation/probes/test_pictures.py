"""A measurement is drawn according to its axes, and the figure has its numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from tests.support.makers import MakeModel
from tests.support.networks import NETWORKS
from tests.support.probes import analysis_of
from vitviz import TokenLayout
from vitviz.evaluation.probes import PROBES, Findings, Measurement, probe
from vitviz.evaluation.probes.probe_figures import pictures

pytestmark = pytest.mark.slow

LAYOUT = TokenLayout(("cls",), 2, 3)


def draw(values: torch.Tensor, *axes: str, quantity: str = "share", **names: tuple[str, ...]) -> Figure:
    findings = Findings("token_norms", "Some.", {"some": Measurement(values, axes, quantity, names)}, (), ())
    return pictures(findings, LAYOUT)["some"]


def images(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


def kind_of(name: str, measurement: Measurement) -> tuple[Any, ...]:
    """What decides how a measurement is drawn: for each axis, whether it has one place or several."""
    values = measurement.values
    sizes = tuple(min(size, 2) for size in values.shape)
    return name, measurement.axes, values.dtype, sizes, bool(values.isnan().any())


def test_every_probe_has_pictures_that_can_be_written(make_model: MakeModel) -> None:
    done: set[tuple[Any, ...]] = set()
    pictured = set()
    for changes in NETWORKS.values():
        analysis = analysis_of(make_model, **changes)
        for name, record in PROBES.items():
            if record.refusal(analysis.model.network.config) is not None:
                continue
            findings = probe(analysis, name)
            # Drawing is slow, and one measurement of each kind is enough.
            new = {key: each for key, each in findings.measurements.items() if kind_of(key, each) not in done}
            done |= {kind_of(key, each) for key, each in new.items()}
            figures = pictures(replace(findings, measurements=new), analysis.trace.layout)
            assert set(figures) <= set(new)
            if figures:
                pictured.add(name)
    assert pictured == set(PROBES)


def test_tokens_are_drawn_on_their_grid() -> None:
    np.testing.assert_array_equal(images(draw(torch.arange(7.0), "token")), [[[1, 2, 3], [4, 5, 6]]])
    values = torch.arange(21.0).reshape(3, 7)
    values[2, 1:] = torch.nan
    figure = draw(values, "step", "token", quantity="norm")
    assert [axes.get_title() for axes in figure.axes if axes.images] == ["input", "layer 0"]
    np.testing.assert_array_equal(images(figure)[1], [[8, 9, 10], [11, 12, 13]])
    assert [text.get_text() for text in figure.axes[-1].get_yticklabels()][::4] == ["1", "13"]


def test_heads_are_drawn_as_a_table_and_layers_as_their_mean() -> None:
    values = torch.rand(2, 4)
    np.testing.assert_allclose(images(draw(values, "layer", "head"))[0], values)
    by_prefix = torch.rand(2, 4, 3)
    np.testing.assert_allclose(images(draw(by_prefix, "layer", "head", "prefix"))[0], by_prefix.sum(-1))
    received = torch.rand(2, 4, 7)
    found = images(draw(received, "layer", "head", "token"))
    np.testing.assert_allclose(found[1], received[1].mean(0)[1:].reshape(2, 3), rtol=1e-6)


def test_the_highest_classes_are_lines_by_their_names() -> None:
    values = torch.zeros(3, 9)
    values[1, 4], values[2, 7] = 0.6, 0.8
    [axes] = draw(values, "step", "class", **{"class": tuple(f"class {index}, or so" for index in range(9))}).axes
    assert [line.get_label() for line in axes.lines][:2] == ["class 7", "class 4"] and len(axes.lines) == 6
    assert axes.lines[1].get_ydata() == pytest.approx([0, 0.6, 0])


def test_filters_are_centred_on_grey() -> None:
    filters = torch.zeros(2, 3, 4, 4)
    filters[0, 1, 2, 3] = -0.5
    filters[0, 0, 0, 0] = 0.25
    first, second = images(draw(filters, "component", "channel", "row", "column"))
    assert first[2, 3, 1] == 0 and first[0, 0, 0] == 0.75 and second.min() == second.max() == 0.5


def test_positions_of_a_large_grid_are_drawn_at_equal_distances() -> None:
    values = torch.rand(17, 5, 17, 5)
    [found] = images(draw(values, "row", "column", "other row", "other column"))
    # A map of each position, with a gap beside and below it.
    assert found.shape == (9 * 18, 5 * 6) and np.isnan(found).sum() == 9 * 18 * 5 * 6 - 9 * 5 * 17 * 5
    np.testing.assert_allclose(found[18 : 18 + 17, :5], values[2, 0])
