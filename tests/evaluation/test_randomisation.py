"""Shuffling weights: which change, which stay, and how much maps change."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vitviz
from tests.support.example import ASSETS, COARSE
from tests.support.makers import MakeModel
from tests.support.modules import WAYS, OwnViT, load_own
from tests.support.pictures import photo
from tests.support.refusals import check_refusals
from vitviz import METHODS, Analysis, Model, TokenMap, save_checkpoint
from vitviz.cli.command import main
from vitviz.errors.kinds import MethodError
from vitviz.evaluation.method_table import cascade_table, cascades, find_images
from vitviz.evaluation.randomization import (
    INTERPRETATION,
    cascade,
    randomized_analysis,
    randomized_model,
    rank_correlation,
    steps,
)
from vitviz.progress import Progress

pytestmark = pytest.mark.slow


# Fast methods, with and without a class.
FAST_METHODS = ("attention", "rollout", "relevance")
# The steps for the three layers of the small models.
DEPTH = 3

KINDS: dict[str, dict[str, object]] = {
    "cls": {"register_tokens": 2},
    "attention pooling": {"pooling": "attention", "cls_token": False, "register_tokens": 1, "gated_mlp": True},
    "representation": {
        "representation_width": 16,
        "projection_width": 8,
        "patch_norms": True,
        "pre_norm": True,
        "query_key_norm": True,
    },
    "rotary": {"rotary": True, "classes": 0, "final_norm": "after pooling", "pooling": "mean"},
}


def parameters_of(model: Model) -> dict[str, torch.Tensor]:
    return {name: weights.clone() for name, weights in model.network.named_parameters()}


def changed(model: Model, other: Model) -> set[str]:
    before, after = parameters_of(model), parameters_of(other)
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.fixture
def image() -> np.ndarray:
    return np.asarray(photo(0, 24, 16))


@pytest.fixture
def analysis(make_model: MakeModel, image: np.ndarray) -> Analysis:
    return vitviz.analyze(image, make_model())


# Weights.


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_learnt_tensor_keeps_its_entries_in_another_order(make_model: MakeModel, kind: dict[str, object]) -> None:
    model = make_model(**kind)
    before = parameters_of(model)
    forgetful = randomized_model(model)
    after = parameters_of(forgetful)
    assert after.keys() == before.keys()
    for name, weights in before.items():
        assert torch.equal(after[name].flatten().sort().values, weights.flatten().sort().values), name
        assert torch.equal(after[name], weights) == (name == "periods"), name
        assert torch.equal(model.network.get_parameter(name), weights), "the model itself stays as it is"
        assert after[name].dtype == weights.dtype and not forgetful.network.get_parameter(name).requires_grad
    assert not forgetful.network.training and forgetful.labels == model.labels


def test_layers_are_randomised_from_the_top_down(make_model: MakeModel) -> None:
    model = make_model()
    everything, names = parameters_of(randomized_model(model)), set(parameters_of(model))
    expected = {name for name in names if name.startswith(("classifier.", "norm."))}
    for count in range(DEPTH + 1):
        if count:
            expected |= {name for name in names if name.startswith(f"layers.{DEPTH - count}.")}
        forgetful = randomized_model(model, count)
        assert changed(model, forgetful) == expected
        found = parameters_of(forgetful)
        assert all(torch.equal(found[name], everything[name]) for name in expected), "the same for more layers"
    assert names - expected == {"prefix_tokens", "positions", "patch_embedding.weight", "patch_embedding.bias"}


def test_precision_stays_and_what_a_trainer_set_does_not(make_model: MakeModel) -> None:
    model = make_model()
    model.network.set_precision("bfloat16").train().requires_grad_(True)
    forgetful = randomized_model(model)
    assert forgetful.network.precision == torch.bfloat16
    assert forgetful.network.encoder[0].attention.qkv.weight.dtype == torch.bfloat16
    assert not forgetful.network.training and model.network.training
    assert all(weights.requires_grad for weights in model.network.parameters())
    assert not any(weights.requires_grad for weights in forgetful.network.parameters())


@pytest.mark.parametrize("highest", [3, 10**6], ids=["many equal", "hardly any equal"])
def test_rank_correlation_is_the_correlation_of_mean_ranks(highest: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        maps = torch.randint(highest, (2, 7, 9), generator=generator).float()
        flat = maps.flatten(1).double()
        less, equal = flat[:, None] < flat[..., None], flat[:, None] == flat[..., None]
        ranks = less.sum(-1) + (equal.sum(-1) + 1) / 2
        expected = float(np.corrcoef(ranks)[0, 1])
        assert rank_correlation(*maps) == pytest.approx(expected, abs=1e-12)


# Maps.


def test_every_step_is_the_map_of_the_model_that_forgot(analysis: Analysis, image: np.ndarray) -> None:
    found, target = cascade(analysis, FAST_METHODS, seed=5), int(analysis.logits.argmax())
    assert list(found) == list(FAST_METHODS)
    models = [analysis.model, *(randomized_model(analysis.model, count, 5) for count in (0, 1, 2, 3, None))]
    assert steps(DEPTH) == ["as trained", "0", "1", "2", "3", "everything"]
    for name, correlations in found.items():
        options = {"target": target} if METHODS[name].class_specific else {}
        maps = [vitviz.analyze(image, model).map(name, **options).values for model in models]
        expected = [rank_correlation(maps[0], each) for each in maps]
        torch.testing.assert_close(correlations, torch.tensor(expected))
        assert correlations[0] == pytest.approx(1)
    # Attention does not depend on the classifier.
    assert found["attention"][1] == found["rollout"][1] == pytest.approx(1)
    assert found["relevance"][1] < 0.99


def test_a_map_that_ignores_the_model_stays_and_one_without_order_has_no_correlation(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def from_the_corner(trace: object) -> TokenMap:
        return TokenMap(torch.arange(24.0).view(4, 6), {}, "distance", "from the corner", (0.0, 24.0))

    def flat(trace: object) -> TokenMap:
        return TokenMap(torch.ones(4, 6), {}, "nothing", "flat")

    monkeypatch.setitem(METHODS, "rollout", replace(METHODS["rollout"], compute=from_the_corner))
    monkeypatch.setitem(METHODS, "attention", replace(METHODS["attention"], compute=flat))
    found = cascade(analysis, ["rollout", "attention"])
    torch.testing.assert_close(found["rollout"], torch.ones(DEPTH + 3))
    assert found["attention"].isnan().all()


def test_relevance_in_the_bundled_model_hangs_on_its_weights(bundled: Model) -> None:
    correlations = []
    for number, path in enumerate(sorted(ASSETS.glob("*.jpg"))):
        trained = vitviz.analyze(path, bundled, resolution=COARSE)
        shuffled = randomized_analysis(trained, seed=number)
        target = int(trained.logits.argmax())
        maps = [each.map("relevance", target=target).values for each in (trained, shuffled)]
        correlations.append(rank_correlation(*maps))
    assert len(correlations) >= 4
    assert np.mean(correlations) < 0.5


def test_progress_is_reported_to_the_end(analysis: Analysis) -> None:
    reports: list[Progress] = []
    cascade(analysis, FAST_METHODS, report=reports.append)
    total = len(FAST_METHODS) * len(steps(DEPTH))
    assert reports == [Progress(done + 1, total) for done in range(total)]


def test_an_impossible_request_is_refused_by_name_before_anything_is_computed(
    analysis: Analysis, make_model: MakeModel, image: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_classes = vitviz.analyze(image, make_model(classes=0))
    monkeypatch.setattr(Analysis, "map", None)
    calls = {
        "pooling_attention: ": lambda: cascade(analysis, ["rollout", "pooling_attention"]),
        "method 'speed': ": lambda: cascade(analysis, ["rollout", "speed"]),
        "relevance: this model has no classifier": lambda: cascade(no_classes, ["relevance"]),
        "target 1: this model has no classifier": lambda: cascade(no_classes, ["rollout"], 1),
    }
    check_refusals(MethodError, calls)


# Many images.


def test_the_table_skips_maps_without_order_and_states_its_number_of_images() -> None:
    nan = math.nan
    found = {
        "rollout": torch.tensor([[1, 1, 0.5, 0.4, -0.1], [1, 1, 0.7, 0.6, 0.1], [1, 1, 0.6, 0.5, 0.0]]),
        "grad_cam": torch.tensor([[1, 0.2, nan, nan, nan], [1, 0.2, 0.1, nan, nan], [1, 0.2, 0.3, 0.3, nan]]),
    }
    assert cascade_table(found).splitlines() == [
        "| layers shuffled | 0 | 1 | 2 | everything |",
        "| --- | --- | --- | --- | --- |",
        "| Attention rollout | 1.00 ± 0.00 | 0.60 ± 0.11 | 0.50 ± 0.11 | 0.00 ± 0.11 |",
        "| Grad-CAM | 0.20 ± 0.00 | 0.20 ± 0.20 (2) | – (1) | – (0) |",
    ]


def test_the_command_prints_the_table_and_keeps_every_correlation(
    make_model: MakeModel, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, checkpoint, output = make_model(classes=0), tmp_path / "small.safetensors", tmp_path / "found.json"
    save_checkpoint(checkpoint, model)
    command = ["check-methods", str(folder), "--checkpoint", str(checkpoint), "--count", "2", "-o", str(output)]
    assert main([*command, "--resolution", "24"]) == 0
    found = cascades(model, find_images(folder, 2), resolution=24)
    assert capsys.readouterr().out == f"{cascade_table(found)}\n\n{INTERPRETATION}\n"
    saved = json.loads(output.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (saved["checkpoint"], saved["resolution"], saved["steps"]) == ("small", 24, steps(DEPTH))
    assert saved["images"] == [path.relative_to(folder).as_posix() for path in find_images(folder, 2)]
    tables = {
        name: torch.tensor([[math.nan if value is None else value for value in row] for row in table])
        for name, table in saved["correlations"].items()
    }
    assert tables.keys() == found.keys()
    for name, table in found.items():
        torch.testing.assert_close(tables[name], table, equal_nan=True)


# Modules.


class Shared(OwnViT):
    """All layers are one."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(pixels)
        for _ in self.layers:
            tokens = self.layers[0](tokens)
        return tokens


@pytest.mark.parametrize("way", WAYS)
def test_a_module_is_shuffled_part_by_part_as_its_tokens_depend_on_it(way: str) -> None:
    module = OwnViT(way)
    model = load_own(module, engine="module")
    before = {name: weights.clone() for name, weights in module.named_parameters()}
    unused = {name for name in before if way == "MultiheadAttention" and ".multi_head" not in name and is_linear(name)}

    def shuffled(layers: int | None) -> set[str]:
        after = randomized_model(model, layers).network.state_dict()
        return {name for name, weights in before.items() if not torch.equal(weights, after[name])}

    above = {name for name in before if name.startswith(("norm.", "classifier."))} | unused
    assert shuffled(0) == above
    assert shuffled(1) == above | {name for name in before if name.startswith("layers.2.")}
    assert shuffled(3) == above | {name for name in before if name.startswith("layers.")}
    assert shuffled(None) == {name for name, weights in before.items() if weights.numel()}
    assert all(torch.equal(weights, before[name]) for name, weights in module.named_parameters())


def is_linear(name: str) -> bool:
    """Whether it is a weight that a layer of ``nn.MultiheadAttention`` leaves unused."""
    return name.startswith("layers.") and name.split(".")[2] in ("query", "key", "value", "projection")


def test_maps_of_a_shuffled_module_are_those_of_a_module_with_its_weights(image: np.ndarray) -> None:
    analysis = vitviz.analyze(image, load_own(OwnViT(), engine="module"))
    shuffled = randomized_analysis(analysis)
    module = OwnViT()
    module.load_state_dict(shuffled.network.state_dict())
    expected = vitviz.analyze(image, load_own(module, engine="module")).map("relevance", target=1)
    torch.testing.assert_close(shuffled.map("relevance", target=1).values, expected.values)


def test_layers_that_share_weights_and_weights_without_effect_are_refused() -> None:
    shared, module = load_own(Shared(), engine="module"), OwnViT()
    randomized_model(shared)
    with pytest.raises(MethodError, match=r"its layers share weights, .*; randomized_model\(model\) shuffles"):
        randomized_model(shared, layers=1)
    elsewhere = load_own(module, engine="module", forward=lambda _, pixels: module(pixels))
    with pytest.raises(MethodError, match="its output depends on no weight of the module that its forward is given"):
        randomized_model(elsewhere)
