"""How an image reaches the model: its fit, resolution, precision and bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.makers import MakeModel
from tests.support.pairs import every_pair
from tests.support.pictures import photo
from vitviz import ConfigError, LimitError, analyze, cost
from vitviz.analysis.costs import cost_of
from vitviz.images.opening import open_image

# Kinds of models that an analysis handles differently.
MODELS: dict[str, dict[str, Any]] = {
    "CLS": {},
    "five prefix tokens": {"distillation_token": True, "register_tokens": 3},
    "no CLS": {"cls_token": False, "pooling": "mean"},
    "no CLS, registers": {"cls_token": False, "pooling": "mean", "register_tokens": 2},
    "one head": {"heads": 1, "head_width": 32},
    "one layer": {"depth": 1},
    "no classifier": {"classes": 0},
}
every_model = pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)


# How the image reaches the model.


@pytest.mark.parametrize(
    ("size", "fit", "grid", "box"),
    [
        ((30, 20), "squash", (4, 6), (0, 0, 30, 20)),
        ((20, 60), "squash", (4, 6), (0, 0, 20, 60)),
        ((30, 20), "crop", (4, 6), (0, 0, 30, 20)),
        ((60, 20), "crop", (4, 6), (15, 0, 45, 20)),
        ((30, 60), "crop", (4, 6), (0, 20, 30, 40)),
        ((90, 30), "native", (3, 8), (0, 0, 90, 30)),
        ((20, 60), "native", (8, 3), (0, 0, 20, 60)),
    ],
)
@pytest.mark.parametrize("own", [True, False], ids=["the checkpoint's fit", "another fit"])
def test_a_fit_decides_what_of_the_image_the_map_covers(
    make_model: MakeModel, size: tuple[int, int], fit: str, grid: tuple[int, int], box: tuple[float, ...], own: bool
) -> None:
    model = make_model(fit=fit if own else "squash")
    analysis = analyze(photo(0, *size), model, None if own else fit)
    heatmap = analysis.attention()
    assert heatmap.values.shape == grid
    assert heatmap.geometry.box == pytest.approx(box)
    assert analysis.prepared.pixels.shape == (1, 3, 4 * grid[0], 4 * grid[1])
    assert heatmap.overlay().size == size
    assert (~np.isnan(heatmap.pixels())).sum() == (box[2] - box[0]) * (box[3] - box[1])


def test_an_analysis_counts_what_it_holds(make_model: MakeModel) -> None:
    model = make_model(register_tokens=4)
    tokens, pixels = 1 + 4 + 4 * 6, 3 * 16 * 24
    trace = 4 * 3 * 4 * tokens * (8 + 8 + 1 + 1) + 4 * 4 * tokens
    held = trace + pixels * 4 + 3 * 30 * 20
    assert analyze(photo(), model, keep_bytes=0).nbytes == held
    # Of three layers as many fusions of the heads, and queries, keys, values and gradients of a class.
    assert analyze(photo(), model).nbytes == held + 4 * 3 * 3 * tokens**2 + 4 * 3 * 4 * tokens * 4 * 8


# Another resolution, precision and bound.


@pytest.mark.parametrize(("fit", "grid"), [("crop", (8, 12)), ("squash", (8, 12)), ("native", (5, 20))])
@every_model
def test_a_resolution_is_what_the_model_sees(
    make_model: MakeModel, changes: dict[str, Any], fit: str, grid: tuple[int, int]
) -> None:
    model, image = make_model(**changes), photo(0, 80, 20)
    analysis = analyze(image, model, fit, resolution=32)
    assert analysis.attention().values.shape == grid
    prepared = model.preprocessing.at(32, 4, 4).prepare(open_image(image), 4, 4, fit)
    assert torch.equal(analysis.prepared.pixels, prepared.pixels)
    assert analysis.prepared.geometry == prepared.geometry
    torch.testing.assert_close(analysis.logits, model.network(prepared.pixels)[0, : len(model.labels)])
    assert analysis.rollout().overlay().size == image.size


def test_a_resolution_that_there_is_not_is_refused_before_the_image_is_opened(make_model: MakeModel) -> None:
    for ask in (analyze, cost):
        with pytest.raises(ConfigError, match="resolution = 30: expected a multiple of the patch's 4 pixels: 28 or 32"):
            ask("no such file.png", make_model(), resolution=30)


@pytest.mark.parametrize(
    ("storage", "kept"), [(None, torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_the_storage_is_how_queries_and_keys_are_kept(
    make_model: MakeModel, storage: str | None, kept: torch.dtype
) -> None:
    model = make_model()
    analysis = analyze(photo(), model, storage=storage)
    exact = analyze(photo(), model)
    assert analysis.trace.queries.dtype == analysis.trace.keys.dtype == kept
    assert torch.equal(analysis.trace.keys, exact.trace.keys.to(kept))
    assert torch.equal(analysis.logits, exact.logits)
    torch.testing.assert_close(analysis.rollout().values, exact.rollout().values, atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_bytes": 1e6}, "keep_bytes = 1000000.0: expected a whole number of at least 0"),
        ({"max_bytes": True}, "max_bytes = True: expected a whole number of at least 0"),
    ],
)
def test_options_that_there_are_not_are_refused(make_model: MakeModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        analyze("no such file.png", make_model(), **options)
    assert str(caught.value) == message


@every_pair(fit=["crop", "squash", "native"], resolution=[None, 8, 40], changes=MODELS)
def test_the_cost_is_that_of_the_analysis(
    make_model: MakeModel, changes: dict[str, Any], resolution: int | None, fit: str
) -> None:
    model = make_model(**changes)
    for image in (photo(0, 90, 20), photo(0, 20, 50)):
        analysis = analyze(image, model, fit, resolution=resolution, keep_bytes=0)
        found = cost(image, model, fit, resolution=resolution)
        assert found == cost_of(model.network.config, analysis.trace.layout)
        assert found.trace_bytes == analysis.trace.nbytes


@every_pair(
    size=[(30, 20), (90, 20), (20, 75)],
    fit=["crop", "squash", "native"],
    changes={name: MODELS[name] for name in ("CLS", "no CLS", "five prefix tokens")},
)
def test_a_refusal_names_the_largest_resolution_that_fits(
    make_model: MakeModel, changes: dict[str, Any], fit: str, size: tuple[int, int]
) -> None:
    model, image = make_model(**changes), photo(0, *size)
    costs = {at: cost(image, model, fit, resolution=at) for at in range(4, 81, 4)}
    needed = {at: found.nbytes for at, found in costs.items()}
    for max_bytes in (needed[20], needed[40] - 1, (needed[76] + needed[80]) // 2):
        refused = [at for at in needed if needed[at] > max_bytes]
        assert refused
        for at in refused:
            with pytest.raises(LimitError) as caught:
                analyze(image, model, fit, resolution=at, max_bytes=max_bytes)
            largest = max(below for below in needed if below < at and needed[below] <= max_bytes)
            message = str(caught.value)
            assert message.startswith(f"image of {size[0]}×{size[1]} pixels as an input of ")
            needs = f"{costs[at].tokens:,} tokens need about {needed[at]:,} bytes"
            assert f": {needs}, max_bytes = {max_bytes:,}; " in message
            assert message.endswith(f"; resolution = {largest} is the largest that fits, or allow more by max_bytes")
        analyze(image, model, fit, resolution=largest, max_bytes=max_bytes)
