"""Training on a tiny folder of coloured squares, with its logs and progress."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.support.colour_profiles import gamma_profile
from tests.support.training import (
    PLAIN,
    SMALL,
    STEPS_PER_EPOCH,
    TrainedRun,
    curves,
    grey_images,
    interrupt_step,
    same_weights,
    steps_of,
    write_folder,
)
from vitviz import ConfigError, VisionTransformer, load
from vitviz.callbacks import SIDE_PX
from vitviz.datasets import BatchRequest
from vitviz.images.colours import SRGB_CHROMATICITIES
from vitviz.training import loop
from vitviz.training.data import LabelledImages, read_image_folder, training_batches
from vitviz.training.evaluate import evaluate
from vitviz.training.presets import TrainingConfig

pytestmark = pytest.mark.slow

# A complete run.


def test_a_small_folder_is_learnt(finished: TrainedRun) -> None:
    assert finished.accuracy.images == 12
    assert finished.accuracy.top1 >= 0.9
    assert finished.accuracy.loss < 0.8 < np.log(3)


def test_the_checkpoint_is_the_model_that_train_returns(finished: TrainedRun) -> None:
    loaded = load(finished.output / loop.CHECKPOINT)
    assert same_weights(loaded.network, finished.model.network)
    assert loaded.network.config == finished.model.network.config
    assert loaded.preprocessing == finished.model.preprocessing
    assert loaded.labels == ("blue", "green", "red")
    assert loaded.card == {
        "data": "36 training and 12 test images of 3 classes",
        "epochs": "6",
        "top-1 accuracy": f"{finished.accuracy.top1:.2%} of 12 test images",
        "calibration": "none: too few test images or mistakes to learn from",
    }
    assert finished.model.name == "colours"
    assert not finished.model.network.training
    assert not any(parameter.requires_grad for parameter in finished.model.network.parameters())


def test_the_accuracy_is_that_of_the_model_that_is_kept(finished: TrainedRun, folder: Path) -> None:
    test = read_image_folder(folder, "test", finished.model.preprocessing, 2, 2)
    repeated = evaluate(finished.model.network, finished.model.preprocessing, test)
    assert (repeated.top1, repeated.per_class) == (finished.accuracy.top1, finished.accuracy.per_class)
    assert repeated.loss == pytest.approx(finished.accuracy.loss, rel=1e-5)


def test_the_preprocessing_standardises_by_the_training_images(finished: TrainedRun, folder: Path) -> None:
    files = sorted((folder / "train").rglob("*.png"))
    values = np.stack([np.asarray(Image.open(path)) for path in files]).astype(np.float64) / 255
    np.testing.assert_allclose(finished.model.preprocessing.mean, values.mean((0, 1, 2)), atol=1e-4)
    np.testing.assert_allclose(finished.model.preprocessing.std, values.std((0, 1, 2)), atol=1e-4)


def test_tensorboard_shows_the_curves_and_the_attention(finished: TrainedRun) -> None:
    events = curves(finished.output)
    every_epoch = [STEPS_PER_EPOCH * epoch for epoch in range(1, 7)]
    for tag in ("train/loss", "train/accuracy", "train/learning rate"):
        assert steps_of(events, tag) == every_epoch
    for tag in ("test/loss", "test/accuracy"):
        assert steps_of(events, tag) == every_epoch[1::2]
    loss = [event.value for event in events.Scalars("train/loss")]
    assert loss[-1] < loss[0]
    assert events.Scalars("test/accuracy")[-1].value == pytest.approx(finished.accuracy.top1, abs=0.1)
    rates = [event.value for event in events.Scalars("train/learning rate")]
    expected = [loop.schedule(step - 1, 18, SMALL.warmup) for step in every_epoch]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    pictures = events.Images("attention rollout")
    assert [picture.step for picture in pictures] == [0, *every_epoch[1::2]]
    assert (pictures[0].width, pictures[0].height) == (3 * SIDE_PX, 2 * SIDE_PX)


def test_the_state_holds_data_only(state: dict[str, Any]) -> None:
    assert state.keys() == {"settings", "epoch", "network", "averaged", "optimiser"} and state["epoch"] == 6
    images = {"classes": ["blue", "green", "red"], "training images": 36}
    assert state["settings"] == {**asdict(SMALL), **images}


def test_a_finished_run_is_not_trained_further(
    finished: TrainedRun, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = shutil.copytree(finished.output, tmp_path / "copy")
    (output / loop.CHECKPOINT).unlink()
    monkeypatch.setattr(loop, "training_batches", None)
    model, accuracy = loop.train(folder, output, SMALL)
    assert same_weights(model.network, finished.model.network)
    assert accuracy == finished.accuracy
    assert (output / loop.CHECKPOINT).is_file()


def test_the_seed_determines_the_weights_and_nothing_else_does(
    finished: TrainedRun, folder: Path, tmp_path: Path
) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    repeated, _ = loop.train(folder, tmp_path / "repeated", SMALL)
    assert torch.equal(torch.get_rng_state(), before), "the caller's own random numbers have changed"
    assert same_weights(repeated.network, finished.model.network)
    other_seed, _ = loop.train(folder, tmp_path / "other_seed", replace(SMALL, seed=1))
    assert not same_weights(other_seed.network, finished.model.network)


def test_the_first_epochs_are_seen_at_low_resolution_and_each_grid_is_evaluated(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run interrupted among batches of several sizes ends as if it had not been."""
    config = replace(SMALL, epochs=4, low_resolution=0.25, smallest_scale=0.5, evaluate_every=2)
    uninterrupted, _ = loop.train(folder, tmp_path / "uninterrupted", config)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_step(patch, epoch=2)
        with pytest.raises(KeyboardInterrupt):
            loop.train(folder, tmp_path / "resumed", config)
    resumed, accuracy = loop.train(folder, tmp_path / "resumed", config)
    assert same_weights(uninterrupted.network, resumed.network)
    test = read_image_folder(folder, "test", resumed.preprocessing, 2, 2)
    small = evaluate(resumed.network, resumed.preprocessing, test.at(4))
    card = resumed.card["top-1 accuracy"]
    assert card.startswith(f"{small.top1:.2%} at 4 pixels, ") and f"{accuracy.top1:.2%} at 8 pixels of 12" in card
    assert steps_of(curves(tmp_path / "uninterrupted"), "test/accuracy at 4 px") == [6, 12]


def test_every_batch_has_one_of_the_sides() -> None:
    config = TrainingConfig(image_size=8, patch_size=2, batch_size=4, low_resolution=0.25, smallest_scale=0.5)

    def sides(epoch: int) -> list[int]:
        return [pixels.shape[-1] for pixels, _ in training_batches(grey_images(160), PLAIN, config, epoch)]

    assert set(sides(0)) == {4}
    found = sides(31)
    assert set(found) == {4, 6, 8} and found != sorted(found) and sides(31) == found


def test_images_are_made_smaller_by_their_means() -> None:
    images = torch.arange(0, 64, dtype=torch.uint8).view(1, 1, 8, 8)
    smaller = LabelledImages(images, torch.tensor([0]), ("a",)).at(4)
    expected = images[0, 0].float().unflatten(0, (4, 2)).unflatten(2, (4, 2)).mean((1, 3)).round()
    assert torch.equal(smaller.images[0, 0].float(), expected)


def test_images_are_made_larger_without_steps() -> None:
    images = torch.tensor([[0, 100], [0, 100]], dtype=torch.uint8).view(1, 1, 2, 2)
    larger = LabelledImages(images, torch.tensor([0]), ("a",)).at(4)
    assert larger.images[0, 0].tolist() == [[0, 25, 75, 100]] * 4


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_registers_are_trained_with_the_rest(folder: Path, tmp_path: Path, pooling: str) -> None:
    config = replace(SMALL, register_tokens=2, epochs=1, pooling=pooling)
    model, _ = loop.train(folder, tmp_path, config)
    assert model.network.config.prefix == ("cls", "register 1", "register 2")
    assert load(tmp_path / loop.CHECKPOINT).network.config.pooling == pooling
    with torch.random.fork_rng():
        torch.manual_seed(SMALL.seed)
        start = VisionTransformer(config.model_config(3))
        loop.initialise(start)
    assert ((model.network.prefix_tokens - start.prefix_tokens).abs().amax(1) > 1e-4).all()


def test_a_run_that_diverges_says_which_settings_to_change(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"epoch \d: the loss is (nan|inf); try a smaller learning_rate"):
        loop.train(folder, tmp_path, replace(SMALL, learning_rate=1e30, warmup=0))
    assert not (tmp_path / loop.CHECKPOINT).exists()


def test_a_batch_in_parts_has_the_gradients_of_the_whole(
    make_network: Callable[..., VisionTransformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = make_network().requires_grad_(True)
    side, classes = network.config.image_height, network.config.classes
    random = torch.Generator().manual_seed(0)
    pixels = torch.randn(5, 3, side, side, generator=random)
    targets = torch.softmax(torch.randn(5, classes, generator=random), -1)
    logits = network(pixels)
    cross_entropy = torch.nn.functional.cross_entropy(logits, targets)
    cross_entropy.backward()
    expected = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    network.zero_grad()

    monkeypatch.setattr(loop, "TOKENS_AT_ONCE", 2 * network.config.layout(side, side).token_count)
    monkeypatch.setattr(loop, "has_bfloat16", lambda device: False)
    run = loop.Run(SMALL, None, None, None, torch.device("cpu"), network, network, None, (Path(), frozenset()))
    loss, right = run.backward(pixels, targets)
    torch.testing.assert_close([each.grad for each in network.parameters() if each.grad is not None], expected)
    torch.testing.assert_close(loss, cross_entropy.detach())
    assert float(right) == pytest.approx(float((logits.argmax(-1) == targets.argmax(-1)).float().mean()))


def test_a_run_on_stored_colours_leaves_a_model_that_reads_them(tmp_path: Path) -> None:
    folder, profile = tmp_path / "photos", gamma_profile(1.0, SRGB_CHROMATICITIES)
    write_folder(folder)
    paths = sorted(folder.rglob("*.png"))
    for path in paths:
        with Image.open(path) as image:
            image.save(path, icc_profile=profile)
    config = replace(SMALL, epochs=1, color_profile="ignore")
    model, accuracy = loop.train(folder, tmp_path / "run", config)
    stored, converted = (vitviz.analyze(paths[0], model, color_profile=choice) for choice in ("ignore", "apply"))
    assert vitviz.analyze(paths[0], model).prepared.pixels.equal(stored.prepared.pixels)
    assert not converted.prepared.pixels.equal(stored.prepared.pixels)
    assert next(vitviz.analyze_batch([paths[0]], model)).prepared.pixels.equal(stored.prepared.pixels)
    assert BatchRequest(model).to_json()["color_profile"] == "ignore"
    test = read_image_folder(folder, "test", model.preprocessing, SMALL.patch_size, SMALL.patch_size)
    assert evaluate(model.network, model.preprocessing, test).top1 == accuracy.top1


@pytest.mark.parametrize(
    ("step", "steps", "warmup", "factor"),
    [(0, 100, 0.1, 0.1), (9, 100, 0.1, 1), (10, 100, 0.1, 1), (55, 100, 0.1, 0.5), (100, 100, 0.1, 0), (0, 1, 0.05, 1)],
)
def test_the_rate_rises_linearly_and_falls_as_half_a_cosine(
    step: int, steps: int, warmup: float, factor: float
) -> None:
    assert loop.schedule(step, steps, warmup) == pytest.approx(factor, abs=1e-12)


def test_the_average_follows_the_network_and_forgets_the_beginning() -> None:
    averaged, network = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    start = averaged.weight.detach().clone()
    for step, weight in ((0, 0.9), (1, 1 - 2 / 11), (10**6, 1e-3)):
        averaged.weight.data.copy_(start)
        loop.average_into(averaged, network, step, 0.999)
        torch.testing.assert_close(averaged.weight.data, torch.lerp(start, network.weight.data, weight))
