"""One image, one model, asked anything: the same for every kind of source, and what the network itself computes."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from vitviz import (
    METHODS,
    Analysis,
    ConfigError,
    ImageError,
    LimitError,
    MethodError,
    Model,
    Preprocessing,
    QueryError,
    VisionTransformer,
    analyze,
    cost,
)
from vitviz.analysis.costs import cost_of
from vitviz.attention.layout import Query
from vitviz.attribution import attention, attention_sheet, rollout
from vitviz.attribution import inputs as subject_module
from vitviz.images.opening import open_image
from vitviz.metrics.faithfulness import faithfulness
from vitviz.models.targets import class_target

MakeModel = Callable[..., Model]

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


def photo(width: int = 30, height: int = 20) -> Image.Image:
    random = np.random.default_rng(0)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


def network_weights(analysis: Analysis) -> np.ndarray:
    """Attention weights of the network itself, ``"layer head query key"``, without any trace."""
    with torch.inference_mode():
        _, weights = analysis.model.network(analysis.prepared.pixels, need_weights=True)
    return torch.stack([layer[0] for layer in weights]).double().numpy()


def tokens_of(values: torch.Tensor, prefix: dict[str, float]) -> np.ndarray:
    """A map as one value per token, prefix tokens first."""
    return np.concatenate([list(prefix.values()), values.double().flatten().numpy()])


# Sources.


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "PIL", "array", "floating-point array"])
def test_every_kind_of_source_gives_the_same_analysis(make_model: MakeModel, tmp_path: Path, kind: str) -> None:
    image, model = photo(), make_model()
    stream = io.BytesIO()
    image.save(stream, "PNG")
    path = tmp_path / "photo.png"
    path.write_bytes(stream.getvalue())
    sources: dict[str, Any] = {
        "path": path,
        "text": str(path),
        "bytes": stream.getvalue(),
        "PIL": image,
        "array": np.asarray(image),
        "floating-point array": np.asarray(image) / 255,
    }
    found = analyze(sources[kind], model)
    with torch.inference_mode():
        logits = model.network(model.preprocessing.prepare(open_image(image), 4, 4).pixels)[0]
    torch.testing.assert_close(found.logits, logits)
    assert found.predictions() == analyze(image, model).predictions()
    assert found.prepared.image.tobytes() == image.tobytes()


def test_the_callers_image_stays_untouched(make_model: MakeModel) -> None:
    image = photo()
    image.info["comment"] = "mine"
    array = np.asarray(image).copy()
    before, pixels = image.copy(), array.copy()
    for source in (image, array):
        analysis = analyze(source, make_model())
        analysis.rollout().overlay(mark=(1, 1))
        analysis.prepared.image.paste("black", (0, 0, 9, 9))
    assert image == before
    assert image.info == {"comment": "mine"}
    np.testing.assert_array_equal(array, pixels)


def test_an_analysis_is_not_part_of_any_gradient(make_model: MakeModel) -> None:
    model = make_model()
    model.network.requires_grad_(True)
    analysis = analyze(photo(), model)
    assert not analysis.logits.requires_grad
    assert not analysis.trace.queries.requires_grad


@pytest.mark.parametrize("source", [3, None, "no such file.png", b"", np.zeros((2, 2, 7))])
def test_what_is_no_image_is_refused(make_model: MakeModel, source: Any) -> None:
    with pytest.raises(ImageError):
        analyze(source, make_model())


# Predictions.


def test_predictions_are_the_softmax_best_first(make_model: MakeModel) -> None:
    analysis = analyze(photo(), make_model())
    logits = analysis.logits.double().numpy()
    probabilities = np.exp(logits) / np.exp(logits).sum()
    order = np.argsort(-probabilities)
    found = analysis.predictions(5)
    assert [prediction.label for prediction in found] == [f"class {index}" for index in order]
    np.testing.assert_allclose([prediction.probability for prediction in found], probabilities[order], rtol=1e-5)
    assert sum(prediction.probability for prediction in found) == pytest.approx(1)


@pytest.mark.parametrize(("count", "given"), [(0, 0), (1, 1), (3, 3), (5, 5), (100, 5)])
def test_as_many_predictions_come_as_are_asked_for_and_exist(make_model: MakeModel, count: int, given: int) -> None:
    analysis = analyze(photo(), make_model())
    assert analysis.predictions(count) == analysis.predictions(5)[:given]
    assert len(analysis.predictions(count)) == given


def test_a_negative_count_is_refused(make_model: MakeModel) -> None:
    with pytest.raises(MethodError, match="count = -1: expected a whole number of at least 0"):
        analyze(photo(), make_model()).predictions(-1)


def test_a_model_without_a_classifier_refuses_predictions_by_name(make_model: MakeModel) -> None:
    analysis = analyze(photo(), make_model(classes=0))
    assert analysis.logits.numel() == 0
    with pytest.raises(MethodError, match="small has no classifier"):
        analysis.predictions()


# Maps.


@every_model
@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("head", [0, -1, "mean", "max", "min"])
def test_attention_is_the_networks_own(
    make_model: MakeModel, changes: dict[str, Any], layer: int, head: int | str
) -> None:
    analysis = analyze(photo(), make_model(**changes))
    weights, layout = network_weights(analysis)[layer], analysis.trace.layout
    queries: dict[Query, np.ndarray] = {name: weights[:, index] for index, name in enumerate(layout.prefix)}
    queries[2, 3] = weights[:, layout.prefix_count + 2 * 6 + 3]
    queries["patches"] = weights[:, layout.prefix_count :].mean(1)
    for query, rows in queries.items():
        expected = getattr(rows, head)(0) if isinstance(head, str) else rows[head]
        found = analysis.attention(layer, head, query)
        np.testing.assert_allclose(tokens_of(found.values, found.token_map.prefix), expected, atol=1e-6)
        assert found.values.shape == (4, 6)
        assert tuple(found.token_map.prefix) == layout.prefix


@every_model
def test_rollout_is_the_product_of_the_networks_own_attention(make_model: MakeModel, changes: dict[str, Any]) -> None:
    analysis = analyze(photo(), make_model(**changes))
    layout = analysis.trace.layout
    product = np.eye(layout.token_count)
    for weights in network_weights(analysis).mean(1):
        mixed = weights + np.eye(len(weights))
        product = mixed / mixed.sum(1, keepdims=True) @ product
    expected = product[0] if "cls" in layout.prefix else product[layout.prefix_count :].mean(0)
    found = analysis.rollout()
    np.testing.assert_allclose(tokens_of(found.values, found.token_map.prefix), expected, atol=1e-6)


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("attention", {}),
    ("attention", {"layer": 1, "head": 2, "query": (3, 5), "direction": "column"}),
    ("rollout", {}),
    ("rollout", {"head_fusion": "max", "discard_ratio": 0.9, "residual_weight": 0.2, "start_layer": 1}),
    ("rollout", {"query": "patches", "reference": "vit-explain"}),
]


@pytest.mark.parametrize(("method", "parameters"), CALLS)
def test_maps_are_those_of_the_functions(make_model: MakeModel, method: str, parameters: dict[str, Any]) -> None:
    analysis = analyze(photo(), make_model())
    expected = {"attention": attention, "rollout": rollout}[method](analysis.trace, **parameters)
    for found in (analysis.map(method, **parameters), getattr(analysis, method)(**parameters)):
        assert torch.equal(found.values, expected.values)
        assert found.token_map.prefix == expected.prefix
        assert found.description == expected.description
        assert found.image is analysis.prepared.image
        assert found.geometry == analysis.prepared.geometry


@pytest.mark.parametrize(("query", "direction"), [(None, "row"), ((1, 2), "row"), ("register 1", "column")])
def test_the_sheet_has_every_layer_and_head(make_model: MakeModel, query: Query | None, direction: str) -> None:
    analysis = analyze(photo(), make_model(register_tokens=1))
    cells = analysis.attention_sheet(query, direction)
    expected = attention_sheet(analysis.trace, query, direction)
    assert [len(row) for row in cells] == [4, 4, 4]
    for layer, row in enumerate(cells):
        for head, cell in enumerate(row):
            assert torch.equal(cell.values, expected[layer][head].values)
            assert torch.equal(cell.values, analysis.attention(layer, head, query, direction).values)


def test_an_unknown_method_is_refused_with_the_legal_ones(make_model: MakeModel) -> None:
    with pytest.raises(MethodError) as caught:
        analyze(photo(), make_model()).map("gradient")
    assert str(caught.value).startswith("method 'gradient': expected ")
    assert all(repr(name) in str(caught.value) for name in METHODS)


CLASS_SPECIFIC = [method.name for method in METHODS.values() if method.class_specific]
every_class_specific = pytest.mark.parametrize("method", CLASS_SPECIFIC)


@every_class_specific
def test_a_class_specific_map_is_about_the_most_probable_class_where_none_is_named(
    make_model: MakeModel, method: str
) -> None:
    analysis = analyze(photo(), make_model())
    best = int(analysis.logits.argmax())
    found = analysis.map(method)
    assert f"class {best}" in found.description
    for target in (best, f"class {best}"):
        assert torch.equal(analysis.map(method, target=target).values, found.values)
    other = analysis.map(method, target=(best + 1) % 5)
    assert (other.values - found.values).abs().max() > 1e-5
    with pytest.raises(MethodError, match="target 5: this model has classes 0 to 4"):
        analysis.map(method, target=5)


def test_maps_are_held_against_chance_and_heads_switched_off(make_model: MakeModel) -> None:
    model = make_model()
    analysis = analyze(photo(), model)
    maps = {"rollout": analysis.rollout(), "relevance": analysis.map("relevance", target="class 2")}
    found = analysis.faithfulness(maps, "class 2", metrics=("deletion",), seed=3)
    values = {name: heatmap.values for name, heatmap in maps.items()}
    expected = faithfulness(model.network, analysis.prepared.pixels, values, 2, ("deletion",), 3)
    assert list(found) == ["deletion"]
    for name, curve in expected["deletion"].items():
        assert torch.equal(found["deletion"][name].scores, curve.scores)
    effects = analysis.head_effects("class 2")
    assert effects.whole == pytest.approx(float(analysis.logits.softmax(-1)[2]), abs=1e-5)
    assert effects.without.shape == (3, 4)
    for ask in (lambda analysis: analysis.faithfulness({}), lambda analysis: analysis.head_effects()):
        with pytest.raises(MethodError, match="this model has no classifier"):
            ask(analyze(photo(), make_model(classes=0)))


@every_class_specific
def test_a_model_without_a_classifier_has_no_class_specific_map(make_model: MakeModel, method: str) -> None:
    with pytest.raises(MethodError, match=f"^{method}: this model has no classifier"):
        analyze(photo(), make_model(classes=0)).map(method)


def test_small_gradients_of_the_last_class_are_kept(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    plain = subject_module.trace_gradients

    def counted(network: Any, pixels: torch.Tensor, target: Any) -> Any:
        runs.append(target.name)
        return plain(network, pixels, target)

    monkeypatch.setattr(subject_module, "trace_gradients", counted)
    analysis = analyze(photo(), make_model())
    for _ in range(2):
        analysis.map("relevance", target=1, start_layer=1)
        analysis.map("gradient_rollout", target=1)
    analysis.map("relevance", target=2)
    assert runs == ["class class 1", "class class 2"]
    assert analysis.nbytes > analyze(photo(), make_model(), keep_bytes=0).nbytes
    forgetful = analyze(photo(), make_model(), keep_bytes=0)
    for _ in range(2):
        forgetful.map("relevance", target=3)
    assert runs[2:] == ["class class 3"] * 2


@pytest.mark.parametrize("method", METHODS)
def test_an_unknown_parameter_is_refused_with_the_legal_ones(make_model: MakeModel, method: str) -> None:
    analysis = analyze(photo(), make_model())
    with pytest.raises(MethodError) as caught:
        analysis.map(method, temperature=2)
    assert str(caught.value).startswith(f"{method} has no parameter 'temperature': expected ")
    assert all(repr(parameter.name) in str(caught.value) for parameter in METHODS[method].parameters)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"layer": 3}, "layer 3: this model has layers 0 to 2"),
        ({"head": 4}, "head 4: this model has heads 0 to 3"),
        ({"query": "register 1"}, "token 'register 1': this model has prefix tokens 'cls', patches"),
        ({"query": (4, 0)}, r"patch \(4, 0\): .* patches \(0, 0\) to \(3, 5\)"),
    ],
)
def test_what_the_model_does_not_have_is_refused_with_what_it_has(
    make_model: MakeModel, parameters: dict[str, Any], told: str
) -> None:
    with pytest.raises(QueryError, match=told):
        analyze(photo(), make_model()).attention(**parameters)


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
    make_model: MakeModel,
    size: tuple[int, int],
    fit: str,
    grid: tuple[int, int],
    box: tuple[float, ...],
    own: bool,
) -> None:
    model = make_model(fit=fit if own else "squash")
    analysis = analyze(photo(*size), model, None if own else fit)
    heatmap = analysis.attention()
    assert heatmap.values.shape == grid
    assert heatmap.geometry.box == pytest.approx(box)
    assert analysis.prepared.pixels.shape == (1, 3, 4 * grid[0], 4 * grid[1])
    assert heatmap.overlay().size == size
    seen = ~np.isnan(heatmap.pixels())
    assert seen.sum() == (box[2] - box[0]) * (box[3] - box[1])


def test_an_unknown_fit_is_refused_with_the_legal_ones(make_model: MakeModel) -> None:
    with pytest.raises(ConfigError, match="fit 'stretch': expected 'crop', 'squash' or 'native'"):
        analyze(photo(), make_model(), "stretch")


def test_an_analysis_counts_what_it_holds(make_model: MakeModel) -> None:
    model = make_model(register_tokens=4)
    tokens, pixels = 1 + 4 + 4 * 6, 3 * 16 * 24
    trace = 4 * 3 * 4 * tokens * (8 + 8 + 1) + 4 * 4 * tokens
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
    model, image = make_model(**changes), photo(80, 20)
    analysis = analyze(image, model, fit, resolution=32)
    assert analysis.attention().values.shape == grid
    prepared = model.preprocessing.at(32, 4, 4).prepare(open_image(image), 4, 4, fit)
    assert torch.equal(analysis.prepared.pixels, prepared.pixels)
    assert analysis.prepared.geometry == prepared.geometry
    torch.testing.assert_close(analysis.logits, model.network(prepared.pixels)[0, : len(model.labels)])
    assert analysis.rollout().overlay().size == image.size


def test_the_trained_resolution_changes_nothing(make_model: MakeModel) -> None:
    model = make_model()
    given, own = analyze(photo(), model, resolution=16), analyze(photo(), model)
    assert torch.equal(given.logits, own.logits)
    assert torch.equal(given.trace.queries, own.trace.queries)


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


def test_matrices_are_kept_where_they_fit(make_model: MakeModel) -> None:
    model, matrices = make_model(), 4 * 3 * 25**2
    kept, none = analyze(photo(), model, keep_bytes=matrices), analyze(photo(), model, keep_bytes=matrices - 1)
    assert kept.trace.fused(0) is kept.trace.fused(0)
    assert none.trace.fused(0) is not none.trace.fused(0)
    assert torch.equal(kept.trace.fused(0), none.trace.fused(0))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"storage": "int8"}, "storage 'int8': expected 'float32', 'bfloat16' or 'float16'"),
        ({"keep_bytes": -1}, "keep_bytes = -1: expected a whole number of at least 0"),
        ({"keep_bytes": 1e6}, "keep_bytes = 1000000.0: expected a whole number of at least 0"),
        ({"max_bytes": -1}, "max_bytes = -1: expected a whole number of at least 0"),
        ({"max_bytes": None}, "max_bytes = None: expected a whole number of at least 0"),
        ({"max_bytes": True}, "max_bytes = True: expected a whole number of at least 0"),
    ],
)
def test_options_that_there_are_not_are_refused(make_model: MakeModel, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        analyze("no such file.png", make_model(), **options)
    assert str(caught.value) == told


@pytest.mark.parametrize("fit", ["crop", "squash", "native"])
@pytest.mark.parametrize("resolution", [None, 8, 40])
@every_model
def test_the_cost_is_that_of_the_analysis(
    make_model: MakeModel, changes: dict[str, Any], resolution: int | None, fit: str
) -> None:
    model = make_model(**changes)
    for image in (photo(90, 20), photo(20, 50)):
        analysis = analyze(image, model, fit, resolution=resolution, keep_bytes=0)
        found = cost(image, model, fit, resolution=resolution)
        assert found == cost_of(model.network.config, analysis.trace.layout)
        assert found.trace_bytes == analysis.trace.nbytes


def test_to_ask_for_the_cost_runs_no_model(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setattr(VisionTransformer, "encode", None)
    monkeypatch.setattr(Preprocessing, "prepare", None)
    assert cost(photo(), model, storage="float16").trace_bytes < cost(photo(), model).trace_bytes
    with pytest.raises(ImageError, match="no such file"):
        cost("gone.png", model)


@pytest.mark.parametrize("size", [(30, 20), (90, 20), (20, 75)])
@pytest.mark.parametrize("fit", ["crop", "squash", "native"])
@pytest.mark.parametrize("changes", [{}, MODELS["no CLS"], MODELS["five prefix tokens"]])
def test_a_refusal_names_the_largest_resolution_that_fits(
    make_model: MakeModel, changes: dict[str, Any], fit: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A rollout of the larger ones then takes less than one of the smaller ones.
    monkeypatch.setattr("vitviz.attribution.threshold.HELD_BYTES", 4 * 400**2)
    monkeypatch.setattr(sys.modules["vitviz.attribution.rollout"], "CHUNK_BYTES", 2**12)
    model, image = make_model(**changes), photo(*size)
    costs = {at: cost(image, model, fit, resolution=at) for at in range(4, 81, 4)}
    needed = {at: found.nbytes for at, found in costs.items()}
    assert list(needed.values()) != sorted(needed.values())
    for max_bytes in (needed[20], needed[40] - 1, (needed[76] + needed[80]) // 2):
        refused = [at for at in needed if needed[at] > max_bytes]
        assert refused
        for at in refused:
            with pytest.raises(LimitError) as caught:
                analyze(image, model, fit, resolution=at, max_bytes=max_bytes)
            largest = max(below for below in needed if below < at and needed[below] <= max_bytes)
            told = str(caught.value)
            assert told.startswith(f"image of {size[0]}×{size[1]} pixels as an input of ")
            assert f": {costs[at].tokens:,} tokens need {needed[at]:,} bytes, max_bytes = {max_bytes:,}; " in told
            assert told.endswith(f"; resolution = {largest} is the largest that fits, or allow more by max_bytes")
        analyze(image, model, fit, resolution=largest, max_bytes=max_bytes)


def test_a_bound_may_be_met_exactly(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    needed = cost(photo(), model).nbytes
    exact = analyze(photo(), model, max_bytes=needed)
    assert torch.equal(exact.logits, analyze(photo(), model).logits)
    monkeypatch.setattr(VisionTransformer, "encode", None)
    monkeypatch.setattr(Preprocessing, "prepare", None)
    with pytest.raises(LimitError, match=r"input of 24×16: 25 tokens need .*; resolution = 12 is"):
        analyze(photo(), model, max_bytes=needed - 1)
    with pytest.raises(LimitError, match="; no resolution fits, or allow more by max_bytes"):
        analyze(photo(), model, max_bytes=0)


# Copies, and what is printed.


def assert_same_maps(found: Analysis, expected: Analysis) -> None:
    for name, method in METHODS.items():
        if method.refusal(expected.model.network.config) is None:
            ours, theirs = found.map(name), expected.map(name)
            assert torch.equal(ours.values, theirs.values) and ours.description == theirs.description
    assert found.head_effects(1).whole == expected.head_effects(1).whole


@pytest.mark.parametrize("copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy, copy.copy])
@pytest.mark.parametrize("asked", [False, True], ids=["at once", "after every map"])
def test_an_analysis_can_be_copied_and_pickled(
    make_model: MakeModel, asked: bool, copied: Callable[[Analysis], Analysis], tmp_path: Path
) -> None:
    photo().save(tmp_path / "photo.png")
    analysis = analyze(tmp_path / "photo.png", make_model(register_tokens=1))
    if asked:
        assert_same_maps(analysis, analysis)
    found = copied(analysis)
    assert found is not analysis and found.source == analysis.source == tmp_path / "photo.png"
    assert found.predictions() == analysis.predictions() and torch.equal(found.logits, analysis.logits)
    assert found.prepared.image.tobytes() == analysis.prepared.image.tobytes()
    assert_same_maps(found, analysis)


def test_what_is_only_kept_to_be_quicker_is_not_pickled(make_model: MakeModel) -> None:
    analysis = analyze(photo(), make_model())
    before = len(pickle.dumps(analysis))
    assert_same_maps(analysis, analysis)
    assert len(pickle.dumps(analysis)) < 1.1 * before


def test_a_target_can_be_pickled() -> None:
    target = pickle.loads(pickle.dumps(class_target(1, 3, ("a", "b", "c"))))
    assert target.name == "class b" and float(target.score(torch.tensor([1.0, 5.0, 2.0]))) == 5


def test_nothing_prints_more_than_a_line_or_two(make_model: MakeModel, tmp_path: Path) -> None:
    photo().save(tmp_path / "photo.png")
    model = make_model(register_tokens=1, classes=1000)
    analysis = analyze(tmp_path / "photo.png", model)
    heatmap = analysis.attention(layer=1, head=2)
    shown = {
        "Analysis(image ": (analysis, ("photo.png", "small", "3 layers × 4 heads", "4×6 patches", "class ")),
        "Model('small'": (model, ("3 layers × 4 heads", "1,000 classes", "24×16 pixels in patches of 4", "on cpu")),
        "Heatmap('Attention from the CLS token": (heatmap, ("layer 1 of 0–2, head 2", "4×6 patches", "30×20 pixels")),
        "TokenMap('Attention from the CLS token": (heatmap.token_map, ("attention weight from 0.",)),
        "AttentionTrace(3 layers × 4 heads": (analysis.trace, ("26 tokens", "4×6 patches")),
        "PreparedImage(": (analysis.prepared, ("photo.png: 30×20 pixels", "as an input of 24×16")),
        "HeadEffects(3 layers × 4 heads": (analysis.head_effects(0), ("with all of them",)),
    }
    for beginning, (value, parts) in shown.items():
        assert repr(value).startswith(beginning) and all(part in repr(value) for part in parts), repr(value)
        assert len(repr(value)) - len(str(tmp_path)) < 200 and "\n" not in repr(value)
    assert repr(analyze(photo(), make_model(classes=0))) == (
        "Analysis(an image by 'small': 3 layers × 4 heads, 4×6 patches)"
    )


# Signatures that an editor can complete.


def names_of(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


def test_map_takes_the_parameters_of_all_methods_and_no_others() -> None:
    of_methods = {parameter.name for method in METHODS.values() for parameter in method.parameters}
    assert names_of(Analysis.map) == of_methods | {"method", "report"}


def test_what_is_not_said_is_the_methods_own_default() -> None:
    """None stands for it, so that no method may have another default where None means something."""
    for method in METHODS.values():
        takes = inspect.signature(method.compute).parameters
        for parameter in method.parameters:
            if parameter.default is None and parameter.name != "target":
                assert takes[parameter.name].default is None


@pytest.mark.parametrize("method", ["attention", "rollout"])
def test_a_method_of_its_own_has_the_parameters_of_its_function(method: str) -> None:
    own, function = (
        list(inspect.signature(each).parameters.values())[1:]
        for each in (getattr(Analysis, method), METHODS[method].compute)
    )
    assert [(each.name, each.default) for each in own] == [(each.name, each.default) for each in function]


def test_no_public_function_hides_its_parameters() -> None:
    public = [value for name in vitviz.__all__ if callable(value := getattr(vitviz, name))]
    methods = [each for kind in public if inspect.isclass(kind) for name, each in vars(kind).items() if name[0] != "_"]
    checked = 0
    for function in (*public, *methods):
        if not inspect.isfunction(function):
            continue
        checked += 1
        kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, function
    assert checked > 40
