"""A checkpoint comes back bit by bit, or is refused in one line; nothing in a file is ever executed."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.makers import MakeModel
from tests.support.reading import load_checkpoint
from vitviz import CheckpointError, ConfigError, Model, Preprocessing, analyze, load, save_checkpoint
from vitviz.weights import BUNDLED, resources
from vitviz.weights import native as checkpoint

# What is written comes back.

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers": {"register_tokens": 4, "distillation_token": True},
    "no CLS": {"cls_token": False, "pooling": "mean"},
    "no classifier": {"classes": 0},
    "no qkv bias": {"qkv_bias": False, "norm_epsilon": 1e-5},
    "crop": {"fit": "crop"},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_model_comes_back_bit_by_bit(make_model: MakeModel, tmp_path: Path, changes: dict[str, Any]) -> None:
    model = replace(make_model(**changes), assumptions=("heads 12",))
    model.card.update({"top-1 accuracy": "12.3 %", "note": 'ü "quoted" \n second line'})
    path = tmp_path / "name.with.dots.safetensors"
    save_checkpoint(path, model)
    loaded = load_checkpoint(path)
    mine, found = model.network.state_dict(), loaded.network.state_dict()
    assert mine.keys() == found.keys()
    for key, tensor in mine.items():
        assert torch.equal(tensor, found[key]), key
    assert loaded.network.config == model.network.config
    assert loaded.preprocessing == model.preprocessing
    assert loaded.labels == model.labels
    assert loaded.card == model.card and loaded.assumptions == model.assumptions
    assert loaded.name == "name.with.dots"
    assert not loaded.network.training
    assert not any(parameter.requires_grad for parameter in loaded.network.parameters())
    pixels = torch.rand(2, 3, 16, 24)
    assert torch.equal(loaded.network(pixels), model.network(pixels))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_comes_back_as_float32_of_the_same_values(
    make_model: MakeModel, tmp_path: Path, dtype: torch.dtype
) -> None:
    model = make_model()
    model.network.to(dtype)
    save_checkpoint(tmp_path / "half.safetensors", model)
    loaded = load_checkpoint(tmp_path / "half.safetensors")
    for key, tensor in model.network.state_dict().items():
        found = loaded.network.state_dict()[key]
        assert found.dtype == torch.float32
        assert torch.equal(found, tensor.float())


def test_the_numbers_of_the_detector_that_earlier_versions_wrote_are_left(
    make_model: MakeModel, tmp_path: Path
) -> None:
    model, path = make_model(), tmp_path / "small.safetensors"
    save_checkpoint(path, model)
    tensors = load_file(path)
    # As written, of another model, and damaged.
    for mean in (torch.zeros(32), torch.zeros(3), torch.tensor(float("nan"))):
        old = {"ood_detector.mean": mean, "ood_detector.threshold": torch.tensor(-1.5)}
        save_file(tensors | old, path, checkpoint.metadata_of(model))
        save_checkpoint(path, load_checkpoint(path))
        assert load_file(path).keys() == tensors.keys()


# One door to every checkpoint.


@pytest.mark.parametrize("source", ["vitviz-imagenet", "no/such/file.safetensors", "nowhere"])
def test_an_unknown_checkpoint_is_refused_with_the_bundled_names(source: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(source)
    assert str(caught.value).startswith(f"{source!r}: neither a checkpoint's name nor a file")
    assert all(repr(name) in str(caught.value) for name in BUNDLED)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_checkpoint_loads_by_name_and_is_small_enough_for_a_repository(name: str) -> None:
    assert load(name).name == name
    assert (resources("checkpoints") / f"{name}.safetensors").stat().st_size <= 15 * 2**20


@pytest.mark.slow
def test_the_examples_have_some_that_it_knows(bundled: Model) -> None:
    known = {"chelsea.jpg": "cat", "flower.jpg": "flower", "perch.jpg": "fish", "rocket.jpg": "rocket or missile"}
    for name, label in known.items():
        assert analyze(resources("assets") / name, bundled).predictions(1)[0].label == label, name
    assert analyze(resources("assets") / "chelsea.jpg", bundled).predictions(1)[0].probability > 0.5


def test_an_installed_package_is_asked_before_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("vitviz.weights.bundled")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "vitviz" / "weights" / "bundled.py"))
    assert resources("assets") == tmp_path / "assets"
    (tmp_path / "vitviz" / "assets").mkdir(parents=True)
    assert resources("assets") == tmp_path / "vitviz" / "assets"


@pytest.mark.parametrize(
    ("labels", "mean", "height", "message"),
    [
        (4, (0.5,) * 3, 16, "small: 4 labels for 5 classes"),
        (5, (0.5,), 16, "small: 1 channel means for 3 channels"),
        (5, (0.5,) * 3, 3, "3×24 pixels: expected at least one patch, 4×4"),
    ],
)
def test_a_model_of_parts_that_contradict_each_other_is_refused(
    make_model: MakeModel, labels: int, mean: tuple[float, ...], height: int, message: str
) -> None:
    network = make_model().network
    with pytest.raises(ConfigError, match=message):
        Model("small", network, Preprocessing(height, 24, mean, mean, "squash"), ("label",) * labels)
