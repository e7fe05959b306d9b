"""The squares that the page finds on the device are those of the library, and hiding them gives the same numbers."""

from __future__ import annotations

import pytest

from tests.analysis.test_flips import KINDS, wavering
from tests.support.device import Pass, flip_on_device, on_device
from tests.support.example import EXAMPLE
from tests.support.makers import MakeModel
from vitviz import Analysis, Model, analyze
from vitviz.models.probability import class_probabilities

TOLERANCE = 1e-4


def check(analysis: Analysis) -> bool:
    """Whether squares are found: as those of the library, in as many passes, and with its answer."""
    model, pixels = analysis.model, analysis.prepared.pixels
    expected, found = analysis.flip(random_orders=0), flip_on_device(model, pixels)
    assert found["patches"] == [list(cell) for cell in expected.patches]
    # The library also asks what the model says in the end.
    assert found["passes"] == expected.passes - 1 == found["steps"][-1][0]
    done = [step[0] for step in found["steps"]]
    assert done == sorted(done) and all(
        step[1] >= max(step[0], expected.heatmap.values.numel()) for step in found["steps"]
    )
    assert found["after"]["probability"] == pytest.approx(expected.after.probability, abs=TOLERANCE)
    if not expected:
        return False
    assert found["after"]["index"] == expected.after.index
    columns = analysis.trace.layout.grid_width
    hidden = [row * columns + column for row, column in found["patches"]]
    [by_hand] = on_device(model, [Pass(pixels, {"hiddenPatches": hidden, "logitsOnly": True})])
    after = class_probabilities(by_hand["logits"], model.network.config.probability)
    assert float(after.max()) == pytest.approx(found["after"]["probability"], abs=1e-6)
    changes = {row["index"]: (row["before"], row["after"]) for row in found["changes"]["classes"]}
    before = class_probabilities(analysis.logits, model.network.config.probability)
    for index, (was, now) in changes.items():
        assert was == pytest.approx(float(before[index]), abs=TOLERANCE) and now == pytest.approx(float(after[index]))
    return True


@pytest.mark.parametrize("name", ["chelsea.jpg", "coffee.jpg"])
def test_the_examples_have_the_squares_of_the_library(bundled: Model, name: str) -> None:
    assert check(analyze(EXAMPLE.with_name(name), bundled))


@pytest.mark.parametrize("changes", [*KINDS, {"cls_token": False, "pooling": "attention"}], ids=str)
def test_any_network_has_the_squares_of_the_library(make_model: MakeModel, changes: dict[str, object]) -> None:
    assert any([check(wavering(make_model, **changes)) for _ in range(2)])


def test_of_a_large_set_as_many_squares_are_tried(make_model: MakeModel) -> None:
    analyses = (wavering(make_model, 6.0, image_height=48, image_width=64) for _ in range(9))
    assert check(next(each for each in analyses if not each.flip(random_orders=0).all_needed))
