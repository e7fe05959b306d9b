"""Training on a tiny folder of coloured squares, with its logs and progress."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tqdm import tqdm

import vitviz
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
from vitviz import (
    ConfigError,
    VisionTransformer,
    load,
)
from vitviz.callbacks import SIDE_PX
from vitviz.datasets import BatchRequest
from vitviz.images.colours import SRGB_CHROMATICITIES, gamma_profile
from vitviz.training import loop
from vitviz.training.config import Augmentation, TrainingConfig
from vitviz.training.data import LabelledImages, read_image_folder, training_batches
from vitviz.training.evaluate import evaluate
from vitviz.training.optimise import colour_limit, initialise, schedule
from vitviz.training.patch_dropout import forward_some
from vitviz.training.state import Run

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
    assert loaded.ood_detector is None
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
    expected = [schedule(step - 1, 18, SMALL.warmup) for step in every_epoch]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    pictures = events.Images("attention rollout")
    assert [picture.step for picture in pictures] == [0, *every_epoch[1::2]]
    assert (pictures[0].width, pictures[0].height) == (3 * SIDE_PX, 2 * SIDE_PX)


def test_the_state_holds_data_only(state: dict[str, Any]) -> None:
    header = {"config", "images", "soft labels", "epoch"}
    assert state.keys() == header | {"network", "averaged", "feature head", "optimisers"}
    assert state["config"] == asdict(SMALL)
    assert state["images"] == {"classes": ["blue", "green", "red"], "training images": 36}
    assert state["soft labels"] is None and state["epoch"] == 6


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


def test_the_progress_bar_does_not_decide_what_is_learnt(
    finished: TrainedRun, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hidden(tqdm):
        """A bar as with TQDM_DISABLE=1."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options, disable=True)

    monkeypatch.setattr(loop, "tqdm", Hidden)
    model, _ = loop.train(folder, tmp_path, SMALL)
    assert same_weights(model.network, finished.model.network)
    assert steps_of(curves(tmp_path), "test/loss") == [6, 12, 18]


def test_the_first_epochs_are_seen_at_low_resolution(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = []

    def spy(*arguments: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for pixels, targets in training_batches(*arguments):
            batches.append(pixels)
            yield pixels, targets

    monkeypatch.setattr(loop, "training_batches", spy)
    loop.train(folder, tmp_path, replace(SMALL, epochs=4, low_resolution=0.5, evaluate_every=4))
    assert [tuple(pixels.shape) for pixels in batches] == [(12, 3, 6, 6)] * 6 + [(12, 3, 8, 8)] * 6
    assert len({pixels.numpy().tobytes() for pixels in batches}) == 12, "an epoch repeats another"


def test_a_network_of_several_grids_is_evaluated_on_each(folder: Path, tmp_path: Path) -> None:
    """A run interrupted among batches of several sizes ends as if it had not been."""
    config = replace(SMALL, low_resolution=0.25, low_scale=0.5, smallest_scale=0.5, evaluate_every=3)
    uninterrupted, _ = loop.train(folder, tmp_path / "uninterrupted", config)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_step(patch)
        with pytest.raises(KeyboardInterrupt):
            loop.train(folder, tmp_path / "resumed", config)
    resumed, accuracy = loop.train(folder, tmp_path / "resumed", config)
    assert same_weights(uninterrupted.network, resumed.network)
    test = read_image_folder(folder, "test", resumed.preprocessing, 2, 2)
    small = evaluate(resumed.network, resumed.preprocessing, test.at(4))
    card = resumed.card["top-1 accuracy"]
    assert card.startswith(f"{small.top1:.2%} at 4 pixels, ") and f"{accuracy.top1:.2%} at 8 pixels of 12" in card
    assert steps_of(curves(tmp_path / "uninterrupted"), "test/accuracy at 4 px") == [9, 18]


def test_every_batch_has_one_of_the_sides() -> None:
    found = [
        pixels.shape[-1]
        for pixels, _ in training_batches(grey_images(160), PLAIN, Augmentation(), 4, (4, 6, 8), 0.3, 0)
    ]
    assert set(found) == {4, 6, 8} and found != sorted(found)
    repeated = training_batches(grey_images(160), PLAIN, Augmentation(), 4, (4, 6, 8), 0.3, 0)
    assert [pixels.shape[-1] for pixels, _ in repeated] == found


def test_images_are_made_smaller_by_their_means() -> None:
    images = torch.arange(0, 64, dtype=torch.uint8).view(1, 1, 8, 8)
    smaller = LabelledImages(images, torch.tensor([0]), ("a",)).at(4)
    expected = images[0, 0].float().unflatten(0, (4, 2)).unflatten(2, (4, 2)).mean((1, 3)).round()
    assert torch.equal(smaller.images[0, 0].float(), expected)


def test_images_are_made_larger_without_steps() -> None:
    images = torch.tensor([[0, 100], [0, 100]], dtype=torch.uint8).view(1, 1, 2, 2)
    larger = LabelledImages(images, torch.tensor([0]), ("a",)).at(4)
    assert larger.images[0, 0].tolist() == [[0, 25, 75, 100]] * 4


def test_registers_are_trained_with_the_rest(folder: Path, tmp_path: Path) -> None:
    config = replace(SMALL, register_tokens=2, epochs=1)
    model, _ = loop.train(folder, tmp_path, config)
    assert model.network.config.prefix == ("cls", "register 1", "register 2")
    with torch.random.fork_rng():
        torch.manual_seed(SMALL.seed)
        start = VisionTransformer(config.model_config(3))
        initialise(start)
    change = (model.network.prefix_tokens - start.prefix_tokens).abs().amax(1)
    assert (change > 1e-4).all()


def test_a_run_that_diverges_says_which_settings_to_change(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"epoch \d: the loss is (nan|inf); try a smaller muon_rate .* adam_rate"):
        loop.train(folder, tmp_path, replace(SMALL, adam_rate=1e30, warmup=0))
    assert not (tmp_path / loop.CHECKPOINT).exists()


@pytest.mark.parametrize("weight", [0.0, 3.0])
def test_a_batch_in_parts_has_the_gradients_of_the_whole(
    make_network: Callable[..., VisionTransformer], monkeypatch: pytest.MonkeyPatch, weight: float
) -> None:
    network = make_network().requires_grad_(True)
    side, classes = network.config.image_height, network.config.classes
    random = torch.Generator().manual_seed(0)
    pixels = torch.randn(5, 3, side, side, generator=random)
    probabilities = torch.softmax(torch.randn(5, classes, generator=random), -1)
    wanted = torch.nn.functional.normalize(torch.randn(5, 4, generator=random), dim=1)
    head = torch.nn.Linear(network.config.width, 4)
    features = forward_some(network, pixels, 999, random)
    logits = network.classifier(features)
    cross_entropy = torch.nn.functional.cross_entropy(logits, probabilities)
    distance = (1 - torch.nn.functional.cosine_similarity(head(features), wanted)).mean()
    (cross_entropy + weight * distance).backward()
    trained = [*network.parameters(), *(head.parameters() if weight else ())]
    expected = [parameter.grad.clone() for parameter in trained if parameter.grad is not None]
    network.zero_grad()
    head.zero_grad()

    monkeypatch.setattr(loop, "TOKENS_AT_ONCE", 2 * network.config.layout(side, side).token_count)
    config = TrainingConfig(feature_weight=weight)
    run = Run(config, {}, network, network, [], head if weight else None)
    targets = torch.cat([probabilities, wanted], 1)
    loss, far, right = loop._backward(run, pixels, targets, torch.device("cpu"), bfloat16=False, random=random)
    torch.testing.assert_close([each.grad for each in trained if each.grad is not None], expected)
    torch.testing.assert_close(loss, cross_entropy.detach())
    torch.testing.assert_close(far, distance.detach() * (weight > 0))
    assert float(right) == pytest.approx(float((logits.argmax(-1) == probabilities.argmax(-1)).float().mean()))


def test_a_run_keeps_its_patch_embedding_within_the_limit_of_colours(folder: Path, tmp_path: Path) -> None:
    config = replace(SMALL, epochs=1, colour_frequencies=1)
    model, _ = loop.train(folder, tmp_path / "run", config)
    assert model.network.config.patch_height == config.patch_size
    weight = model.network.patch_embedding.weight
    limit = colour_limit(config.patch_size, 1, model.preprocessing.std)
    torch.testing.assert_close(weight @ limit, weight)
    assert weight.norm() > 0.1


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


def test_a_run_of_little_detail_leaves_a_model_that_reduces_every_picture(folder: Path, tmp_path: Path) -> None:
    model, accuracy = loop.train(folder, tmp_path / "run", replace(SMALL, epochs=1, picture_detail=4))
    repeated = load(tmp_path / "run" / loop.CHECKPOINT)
    assert repeated.preprocessing == model.preprocessing
    assert repeated.preprocessing.detail == 4
    # The run evaluated the model that it saved.
    test = read_image_folder(folder, "test", repeated.preprocessing, SMALL.patch_size, SMALL.patch_size)
    assert evaluate(repeated.network, repeated.preprocessing, test).top1 == accuracy.top1
    full = evaluate(repeated.network, replace(repeated.preprocessing, detail=None), test)
    assert full.loss != pytest.approx(accuracy.loss, rel=1e-4)
