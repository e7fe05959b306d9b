"""A tiny folder of coloured squares is learnt, interrupted, resumed, watched and evaluated."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from einops import rearrange, repeat
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tqdm import tqdm

from vitviz import (
    CheckpointError,
    ConfigError,
    DataError,
    ImageError,
    Model,
    Preprocessing,
    VisionTransformer,
    load,
)
from vitviz.training import data as data_module
from vitviz.training import loop
from vitviz.training.config import PRESETS, Augmentation, TrainingConfig
from vitviz.training.data import LabelledImages, read_image_folder, training_batches
from vitviz.training.evaluate import Accuracy, evaluate
from vitviz.training.optimise import average_into, initialise, schedule
from vitviz.training.watch import SIDE, attention_picture

COLOURS = {"blue": (30, 40, 220), "green": (40, 200, 50), "red": (220, 40, 30)}
PLAIN = Preprocessing(8, 8, (0.0,) * 3, (1.0,) * 3, "squash")
SMALL = TrainingConfig(
    image_size=8,
    patch_size=2,
    width=16,
    depth=1,
    heads=2,
    mlp_ratio=2,
    epochs=6,
    batch_size=12,
    muon_rate=0.02,
    adam_rate=0.02,
    augmentation=Augmentation(jitter=0.1),
)
STEPS_PER_EPOCH = 3


def write_folder(root: Path, classes: dict[str, tuple[int, int, int]] = COLOURS, **counts: int) -> Path:
    """Noisy squares of one colour a class: ``write_folder(root, train=12, test=4)``."""
    random = np.random.default_rng(0)
    for split, count in (counts or {"train": 12, "test": 4}).items():
        for label, colour in classes.items():
            (root / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = np.array(colour) + random.normal(0, 25, (8, 8, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / split / label / f"{number}.png")
    return root


def same_weights(one: VisionTransformer, other: VisionTransformer) -> bool:
    """Whether two networks agree in every bit."""
    mine, others = one.state_dict(), other.state_dict()
    return mine.keys() == others.keys() and all(torch.equal(mine[key], others[key]) for key in mine)


def curves(output: Path) -> EventAccumulator:
    return EventAccumulator(str(output / loop.LOGS)).Reload()


def steps_of(events: EventAccumulator, tag: str) -> list[int]:
    return [event.step for event in events.Scalars(tag)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve training and four test images of each of three colours. Read only."""
    return write_folder(tmp_path_factory.mktemp("images"))


@dataclass(frozen=True)
class Finished:
    output: Path
    model: Model
    accuracy: Accuracy


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A whole run, never interrupted. Read only."""
    output = tmp_path_factory.mktemp("runs") / "colours"
    return Finished(output, *loop.train(folder, output, SMALL))


@pytest.fixture
def state(finished: Finished) -> dict[str, Any]:
    return torch.load(finished.output / loop.STATE, weights_only=True)


# A whole run.


def test_a_small_folder_is_learnt(finished: Finished) -> None:
    assert finished.accuracy.images == 12
    assert finished.accuracy.top1 >= 0.9
    assert finished.accuracy.loss < 0.8 < np.log(3)


def test_the_checkpoint_is_the_model_that_train_returns(finished: Finished) -> None:
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
    assert loaded.ood_threshold is None
    assert finished.model.name == "colours"
    assert not finished.model.network.training
    assert not any(parameter.requires_grad for parameter in finished.model.network.parameters())


def test_the_accuracy_is_that_of_the_model_that_is_kept(finished: Finished, folder: Path) -> None:
    test = read_image_folder(folder, "test", finished.model.preprocessing, 2, 2)
    again = evaluate(finished.model.network, finished.model.preprocessing, test)
    assert (again.top1, again.per_class) == (finished.accuracy.top1, finished.accuracy.per_class)
    assert again.loss == pytest.approx(finished.accuracy.loss, rel=1e-5)


def test_the_preprocessing_standardises_by_the_training_images(finished: Finished, folder: Path) -> None:
    files = sorted((folder / "train").rglob("*.png"))
    values = np.stack([np.asarray(Image.open(path)) for path in files]).astype(np.float64) / 255
    np.testing.assert_allclose(finished.model.preprocessing.mean, values.mean((0, 1, 2)), atol=1e-4)
    np.testing.assert_allclose(finished.model.preprocessing.std, values.std((0, 1, 2)), atol=1e-4)


def test_tensorboard_shows_the_curves_and_the_attention(finished: Finished) -> None:
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
    assert [picture.step for picture in pictures] == every_epoch[1::2]
    assert (pictures[0].width, pictures[0].height) == (3 * SIDE, 2 * SIDE)


def test_the_state_holds_data_only(state: dict[str, Any]) -> None:
    assert state.keys() == {"config", "images", "epoch", "network", "averaged", "optimisers"}
    assert state["config"] == asdict(SMALL)
    assert state["images"] == {"classes": ["blue", "green", "red"], "training images": 36}
    assert state["epoch"] == 6


def test_a_finished_run_is_not_trained_further(
    finished: Finished, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = shutil.copytree(finished.output, tmp_path / "copy")
    (output / loop.CHECKPOINT).unlink()
    monkeypatch.setattr(loop, "training_batches", None)
    model, accuracy = loop.train(folder, output, SMALL)
    assert same_weights(model.network, finished.model.network)
    assert accuracy == finished.accuracy
    assert (output / loop.CHECKPOINT).is_file()


def test_the_seed_determines_the_weights_and_nothing_else_does(
    finished: Finished, folder: Path, tmp_path: Path
) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again, _ = loop.train(folder, tmp_path / "again", SMALL)
    assert torch.equal(torch.get_rng_state(), before), "the caller's own random numbers have changed"
    assert same_weights(again.network, finished.model.network)
    other, _ = loop.train(folder, tmp_path / "other", replace(SMALL, seed=1))
    assert not same_weights(other.network, finished.model.network)


def test_the_progress_bar_does_not_decide_what_is_learnt(
    finished: Finished, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hidden(tqdm):
        """What TQDM_DISABLE=1 makes of every bar."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options, disable=True)

    monkeypatch.setattr(loop, "tqdm", Hidden)
    model, _ = loop.train(folder, tmp_path, SMALL)
    assert same_weights(model.network, finished.model.network)
    assert steps_of(curves(tmp_path), "test/loss") == [6, 12, 18]


def test_the_first_epochs_are_seen_at_low_resolution(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watched(*arguments: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for pixels, targets in training_batches(*arguments):
            seen.append(pixels)
            yield pixels, targets

    monkeypatch.setattr(loop, "training_batches", watched)
    loop.train(folder, tmp_path, replace(SMALL, epochs=4, low_resolution=0.5, evaluate_every=4))
    assert [tuple(pixels.shape) for pixels in seen] == [(12, 3, 6, 6)] * 6 + [(12, 3, 8, 8)] * 6
    assert len({pixels.numpy().tobytes() for pixels in seen}) == 12, "an epoch repeats another"


def test_a_network_of_several_grids_is_evaluated_on_each(folder: Path, tmp_path: Path) -> None:
    """Interrupted among batches of several sizes, it ends as if it had not been."""
    config = replace(SMALL, low_resolution=0.25, low_scale=0.5, smallest_scale=0.5, evaluate_every=3)
    whole, _ = loop.train(folder, tmp_path / "whole", config)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_step(patch)
        with pytest.raises(KeyboardInterrupt):
            loop.train(folder, tmp_path / "resumed", config)
    resumed, accuracy = loop.train(folder, tmp_path / "resumed", config)
    assert same_weights(whole.network, resumed.network)
    test = read_image_folder(folder, "test", resumed.preprocessing, 2, 2)
    small = evaluate(resumed.network, resumed.preprocessing, test.at(4))
    card = resumed.card["top-1 accuracy"]
    assert card.startswith(f"{small.top1:.2%} at 4 pixels, ") and f"{accuracy.top1:.2%} at 8 pixels of 12" in card
    assert steps_of(curves(tmp_path / "whole"), "test/accuracy at 4 px") == [9, 18]


def test_every_batch_has_one_of_the_sides() -> None:
    found = [
        pixels.shape[-1] for pixels, _ in training_batches(counted(160), PLAIN, Augmentation(), 4, (4, 6, 8), 0.3, 0)
    ]
    assert set(found) == {4, 6, 8} and found != sorted(found)
    again = training_batches(counted(160), PLAIN, Augmentation(), 4, (4, 6, 8), 0.3, 0)
    assert [pixels.shape[-1] for pixels, _ in again] == found


def test_images_are_made_smaller_by_their_means() -> None:
    images = torch.arange(0, 64, dtype=torch.uint8).view(1, 1, 8, 8)
    smaller = LabelledImages(images, torch.tensor([0]), ("a",)).at(4)
    expected = images[0, 0].float().unflatten(0, (4, 2)).unflatten(2, (4, 2)).mean((1, 3)).round()
    assert torch.equal(smaller.images[0, 0].float(), expected)


def test_registers_are_trained_with_the_rest(folder: Path, tmp_path: Path) -> None:
    config = replace(SMALL, register_tokens=2, epochs=1)
    model, _ = loop.train(folder, tmp_path, config)
    assert model.network.config.prefix == ("cls", "register 1", "register 2")
    with torch.random.fork_rng():
        torch.manual_seed(SMALL.seed)
        start = VisionTransformer(config.model_config(3))
        initialise(start)
    moved = (model.network.prefix_tokens - start.prefix_tokens).abs().amax(1)
    assert (moved > 1e-4).all()


def test_a_run_that_diverges_says_which_settings_to_change(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"epoch \d: the loss is (nan|inf); try a smaller muon_rate .* adam_rate"):
        loop.train(folder, tmp_path, replace(SMALL, adam_rate=1e30, warmup=0))
    assert not (tmp_path / loop.CHECKPOINT).exists()


# Interrupts and resumes.


def interrupt_step(monkeypatch: pytest.MonkeyPatch, epoch: int = 4) -> None:
    """In the middle of an epoch, by default the fifth."""

    def average(averaged: torch.nn.Module, network: torch.nn.Module, step: int, decay: float) -> None:
        if step == epoch * STEPS_PER_EPOCH + 1:
            raise KeyboardInterrupt
        average_into(averaged, network, step, decay)

    monkeypatch.setattr(loop, "average_into", average)


def interrupt_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the second epoch, before its state is written."""

    def stop(*_: object) -> Accuracy:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "evaluate", stop)


def interrupt_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With half of the third epoch's state on the disk."""
    whole, written = torch.save, []

    def save(state: dict[str, Any], path: Path) -> None:
        whole(state, path)
        written.append(path)
        # Each epoch writes its state, and then the compact one.
        if len(written) == 5:
            path.write_bytes(path.read_bytes()[:1000])
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", save)


@pytest.mark.parametrize(
    ("interrupt", "whole_epochs"), [(interrupt_step, 4), (interrupt_evaluation, 1), (interrupt_writing, 2)]
)
def test_an_interrupted_run_resumes_as_if_it_had_not_been(
    finished: Finished,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt: Callable[[pytest.MonkeyPatch], None],
    whole_epochs: int,
) -> None:
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        interrupt(patched)
        loop.train(folder, tmp_path, SMALL)
    assert torch.load(tmp_path / loop.STATE, weights_only=True)["epoch"] == whole_epochs
    assert not (tmp_path / loop.CHECKPOINT).exists()

    model, accuracy = loop.train(folder, tmp_path, SMALL)
    assert same_weights(model.network, finished.model.network)
    assert accuracy == finished.accuracy
    resumed, uninterrupted = curves(tmp_path), curves(finished.output)
    for tag in uninterrupted.Tags()["scalars"]:
        both = [[(event.step, event.value) for event in events.Scalars(tag)] for events in (resumed, uninterrupted)]
        assert both[0] == both[1], f"{tag} has gaps or doubles where it was resumed"


CHANGES = {
    "epochs": ({"epochs": 7}, "epochs was 6, now 7"),
    "seed": ({"seed": 1}, "seed was 0, now 1"),
    "augmentation": ({"augmentation": Augmentation(jitter=0.1, flip=False)}, "flip was True, now False"),
    "two": ({"muon_rate": 0.01, "depth": 2}, "depth was 1, now 2; muon_rate was 0.02, now 0.01"),
}


@pytest.mark.parametrize(("changes", "told"), CHANGES.values(), ids=CHANGES)
def test_another_configuration_is_not_resumed_and_the_difference_is_told(
    finished: Finished, folder: Path, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    before = shutil.copy(finished.output / loop.STATE, tmp_path / loop.STATE).read_bytes()
    with pytest.raises(CheckpointError, match=rf"state\.pt: belongs to another run \({re.escape(told)}\)"):
        loop.train(folder, tmp_path, replace(SMALL, **changes))
    assert (tmp_path / loop.STATE).read_bytes() == before


@pytest.mark.parametrize(
    ("classes", "count", "told"),
    [
        (("blue", "green", "yellow"), 12, r"classes was \['blue', 'green', 'red'\], now \['blue', 'green', 'yellow'\]"),
        (("blue", "green", "red"), 13, "training images was 36, now 39"),
    ],
    ids=["classes", "count"],
)
def test_other_images_are_not_resumed(
    finished: Finished, tmp_path: Path, classes: tuple[str, ...], count: int, told: str
) -> None:
    other = write_folder(tmp_path / "images", dict.fromkeys(classes, (9, 9, 9)), train=count, test=1)
    shutil.copy(finished.output / loop.STATE, tmp_path / loop.STATE)
    with pytest.raises(CheckpointError, match=told):
        loop.train(other, tmp_path, SMALL)


# Going on elsewhere, from the compact state.


def test_the_compact_state_goes_on_at_its_epoch_with_rounded_weights(
    finished: Finished, folder: Path, tmp_path: Path
) -> None:
    compact = finished.output / loop.COMPACT
    state = torch.load(compact, weights_only=True)
    assert state["epoch"] == 6 and {tensor.dtype for tensor in state["averaged"].values()} == {torch.bfloat16}
    assert compact.stat().st_size < (finished.output / loop.STATE).stat().st_size / 2
    # Of a finished run no epoch is left, so that its weights can be seen.
    model, _ = loop.train(folder, tmp_path, SMALL, resume_from=compact)
    kept = {key: value.bfloat16().float() for key, value in finished.model.network.state_dict().items()}
    assert all(torch.equal(value, kept[key]) for key, value in model.network.state_dict().items())


def test_a_compact_state_may_go_on_longer_and_with_other_settings(
    finished: Finished, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output folder's own state counts once there is one."""
    longer = replace(SMALL, epochs=9, muon_rate=0.01, seed=3)
    steps = []

    def average(averaged: torch.nn.Module, network: torch.nn.Module, step: int, decay: float) -> None:
        steps.append(step)
        if step == 22 and steps.count(step) == 1:
            raise KeyboardInterrupt
        average_into(averaged, network, step, decay)

    monkeypatch.setattr(loop, "average_into", average)
    with pytest.raises(KeyboardInterrupt):
        loop.train(folder, tmp_path, longer, resume_from=finished.output / loop.COMPACT)
    _, accuracy = loop.train(folder, tmp_path, longer, resume_from=finished.output / loop.COMPACT)
    assert steps == [18, 19, 20, 21, 22, 21, 22, 23, 24, 25, 26]
    assert accuracy.top1 >= 0.9


COMPACT_DAMAGES: dict[str, tuple[Callable[[Path], object], dict[str, Any], str]] = {
    "missing": (lambda path: path.unlink(), {}, "no such file; expected the compact.pt of a run"),
    "text": (lambda path: path.write_bytes(b"not a state"), {}, "damaged, or no compact.pt of `vitviz train`"),
    "other network": (lambda path: None, {"depth": 2}, "weights of another network .*'depth': 1"),
    "too long": (lambda path: None, {"epochs": 5}, "epoch 6 of a run that is to have 5"),
}


@pytest.mark.parametrize(("damage", "changes", "told"), COMPACT_DAMAGES.values(), ids=COMPACT_DAMAGES)
def test_a_compact_state_that_does_not_fit_is_refused(
    finished: Finished,
    folder: Path,
    tmp_path: Path,
    damage: Callable[[Path], object],
    changes: dict[str, Any],
    told: str,
) -> None:
    compact = Path(shutil.copy(finished.output / loop.COMPACT, tmp_path))
    damage(compact)
    with pytest.raises(CheckpointError, match=told):
        loop.train(folder, tmp_path / "run", replace(SMALL, **changes), resume_from=compact)


def test_a_compact_state_of_other_classes_is_refused(finished: Finished, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "images", dict.fromkeys(("blue", "green", "yellow"), (9, 9, 9)), train=12, test=1)
    with pytest.raises(CheckpointError, match=r"other images \(classes was \['blue', 'green', 'red'\]"):
        loop.train(other, tmp_path / "run", SMALL, resume_from=finished.output / loop.COMPACT)


def test_part_of_the_images_is_an_epoch_where_that_is_asked_for(folder: Path, tmp_path: Path) -> None:
    """Interrupted, the run goes on with the images whose turn it is."""
    config = replace(SMALL, images_per_epoch=24, class_balance=0.5)
    whole, _ = loop.train(folder, tmp_path / "whole", config)
    assert steps_of(curves(tmp_path / "whole"), "test/accuracy") == [4, 8, 12]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_step(patch, epoch=2)
        with pytest.raises(KeyboardInterrupt):
            loop.train(folder, tmp_path / "resumed", config)
    resumed, _ = loop.train(folder, tmp_path / "resumed", config)
    assert same_weights(whole.network, resumed.network)


def test_a_batch_in_parts_has_the_gradients_of_the_whole(
    make_network: Callable[..., VisionTransformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = make_network().requires_grad_(True)
    side, classes = network.config.image_height, network.config.classes
    random = torch.Generator().manual_seed(0)
    pixels = torch.randn(5, 3, side, side, generator=random)
    targets = torch.softmax(torch.randn(5, classes, generator=random), -1)
    torch.nn.functional.cross_entropy(network(pixels), targets).backward()
    expected = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    network.zero_grad()
    monkeypatch.setattr(loop, "TOKENS_AT_ONCE", 2 * network.config.layout(side, side).token_count)
    loss, right = loop._backward(network, pixels, targets, torch.device("cpu"), bfloat16=False)
    torch.testing.assert_close(
        [parameter.grad for parameter in network.parameters() if parameter.grad is not None], expected
    )
    logits = network(pixels)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, targets).detach())
    assert float(right) == pytest.approx(float((logits.argmax(-1) == targets.argmax(-1)).float().mean()))


class Payload:
    """Makes a folder when it is unpickled by a loader that executes what it reads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.mkdir, (self.path,)


DAMAGES: dict[str, Callable[[Path, dict[str, Any]], object]] = {
    "empty": lambda path, state: path.write_bytes(b""),
    "text": lambda path, state: path.write_bytes(b"not a state"),
    "truncated": lambda path, state: path.write_bytes(path.read_bytes()[:-2000]),
    "pickle": lambda path, state: path.write_bytes(pickle.dumps(Payload(path.parent / "executed"))),
    "torch pickle": lambda path, state: torch.save({"config": Payload(path.parent / "executed")}, path),
    "list": lambda path, state: torch.save([1, 2], path),
    "no optimisers": lambda path, state: torch.save({**state, "optimisers": []}, path),
    "no network": lambda path, state: torch.save({k: v for k, v in state.items() if k != "network"}, path),
    "no config": lambda path, state: torch.save({**state, "config": None}, path),
    "other tensors": lambda path, state: torch.save({**state, "network": {"norm.weight": torch.ones(3)}}, path),
    "no epoch": lambda path, state: torch.save({**state, "epoch": "six"}, path),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_refused_and_never_executed(
    finished: Finished,
    folder: Path,
    tmp_path: Path,
    state: dict[str, Any],
    damage: Callable[[Path, dict[str, Any]], object],
) -> None:
    path = shutil.copy(finished.output / loop.STATE, tmp_path / loop.STATE)
    damage(path, state)
    with pytest.raises(CheckpointError, match=r"state\.pt: damaged, or not written by .* remove it") as caught:
        loop.train(folder, tmp_path, SMALL)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


def test_the_payload_is_one_that_a_careless_loader_executes(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "executed")))
    assert (tmp_path / "executed").is_dir()


# What cannot be trained.

FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no train": (lambda root: shutil.rmtree(root / "train"), r"no folder train/ in it; expected train/CLASS/IMAGE"),
    "no test": (lambda root: shutil.rmtree(root / "test"), r"no folder test/ or val/ or validation/ in it"),
    "no class": (lambda root: [shutil.rmtree(root / "test" / name) for name in COLOURS], "test: no class folder in it"),
    "empty class": (
        lambda root: (root / "train" / "yellow").mkdir(),
        "train: no image in yellow; expected CLASS/IMAGE",
    ),
    "classes differ": (
        lambda root: (root / "test" / "red").rename(root / "test" / "violet"),
        "red only in train; violet only in test; expected the same classes",
    ),
    "class missing": (lambda root: shutil.rmtree(root / "test" / "red"), r"images: red only in train; expected"),
    "no batch": (
        lambda root: shutil.rmtree(root / "train") or write_folder(root, train=3),
        "9 training images are less",
    ),
}


@pytest.mark.parametrize(("damage", "told"), FOLDERS.values(), ids=FOLDERS)
def test_a_folder_that_cannot_be_trained_on_is_refused(
    folder: Path, tmp_path: Path, damage: Callable[[Path], object], told: str
) -> None:
    root = shutil.copytree(folder, tmp_path / "images")
    damage(root)
    with pytest.raises(DataError, match=told):
        loop.train(root, tmp_path / "run", SMALL)
    assert not (tmp_path / "run").exists()


def test_more_images_than_memory_are_refused_before_they_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_module, "MEMORY_LIMIT", 36 * 3 * 8 * 8)
    assert len(read_image_folder(folder, "train", PLAIN, 2, 2)) == 36
    monkeypatch.setattr(data_module, "MEMORY_LIMIT", 36 * 3 * 8 * 8 - 1)
    monkeypatch.setattr(data_module, "open_image", None)
    with pytest.raises(DataError, match=r"train: 36 decoded images take .* GiB; at most .* GiB"):
        read_image_folder(folder, "train", PLAIN, 2, 2)


CONFIGS = [
    ({"epochs": 0}, "epochs = 0: expected at least 1"),
    ({"batch_size": 0}, "batch_size = 0"),
    ({"evaluate_every": 0}, "evaluate_every = 0"),
    ({"heads": 5}, "width = 192: expected a multiple of heads = 5"),
    ({"warmup": 1.5}, "warmup = 1.5"),
    ({"cooldown": -0.1}, "cooldown = -0.1"),
    ({"class_balance": 1.1}, "class_balance = 1.1"),
    ({"images_per_epoch": 255}, "images_per_epoch = 255: expected 0 or at least batch_size = 256"),
    ({"label_smoothing": float("nan")}, "label_smoothing = nan"),
    ({"average_decay": 1.1}, "average_decay = 1.1"),
    ({"muon_rate": -1.0}, "muon_rate = -1.0: expected a number of 0 or more"),
    ({"adam_rate": float("inf")}, "adam_rate = inf"),
    ({"weight_decay": float("nan")}, "weight_decay = nan"),
    ({"image_size": 30}, "image of 30×30 pixels .* multiple of the patch"),
    ({"patch_size": 0}, "patch_height = 0"),
    ({"depth": 0}, "depth = 0"),
    ({"mlp_ratio": 0.0}, "mlp_width = 0"),
    ({"register_tokens": -1}, "register_tokens = -1"),
]


@pytest.mark.parametrize(("changes", "told"), CONFIGS, ids=[next(iter(changes)) for changes, _ in CONFIGS])
def test_a_configuration_out_of_range_is_refused_at_once(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        TrainingConfig(**changes)


@pytest.mark.parametrize(
    "changes", [{"smallest_crop": 0.0}, {"smallest_crop": 1.1}, {"aspect": 0.9}, {"jitter": -0.1}, {"mix": 2.0}]
)
def test_an_augmentation_out_of_range_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changes))} = "):
        Augmentation(**changes)


@pytest.mark.parametrize(
    ("image_size", "patch_size", "low"), [(32, 4, 24), (224, 16, 160), (8, 2, 6), (8, 4, 8), (4, 4, 4)]
)
def test_low_resolution_is_a_whole_number_of_patches(image_size: int, patch_size: int, low: int) -> None:
    config = TrainingConfig(image_size=image_size, patch_size=patch_size, epochs=8, low_resolution=0.5)
    assert [config.sides(epoch) for epoch in range(8)] == [(low,)] * 4 + [(image_size,)] * 4


def test_later_epochs_have_several_sides_of_whole_patches() -> None:
    config = TrainingConfig(
        image_size=64, patch_size=4, epochs=4, low_resolution=0.5, low_scale=0.375, smallest_scale=0.5
    )
    assert [config.sides(epoch) for epoch in range(4)] == [(24,)] * 2 + [(32, 48, 64)] * 2


# The images and their batches.


def test_a_folder_is_read_in_the_order_of_classes_and_names(folder: Path) -> None:
    data = read_image_folder(folder, "test", PLAIN, 2, 2)
    assert data.labels == ("blue", "green", "red")
    assert data.targets.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.images.dtype == torch.uint8
    for index, path in enumerate(sorted((folder / "test").rglob("*.png"))):
        expected = rearrange(np.asarray(Image.open(path)), "height width channel -> channel height width")
        np.testing.assert_array_equal(data.images[index], expected)


@pytest.mark.parametrize("name", ["val", "validation"])
def test_val_serves_as_test(folder: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(folder / "test", tmp_path / name)
    data = read_image_folder(tmp_path, "test", PLAIN, 2, 2)
    assert torch.equal(data.images, read_image_folder(folder, "test", PLAIN, 2, 2).images)


def test_hidden_files_and_other_files_are_no_images(tmp_path: Path) -> None:
    write_folder(tmp_path, train=2)
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "notes.txt").write_text("no class")
    for name in ("._0.png", "Thumbs.db", "notes.txt"):
        (tmp_path / "train" / "red" / name).write_bytes(b"no image")
    data = read_image_folder(tmp_path, "train", PLAIN, 2, 2)
    assert data.targets.tolist() == [0, 0, 1, 1, 2, 2]


def test_an_image_that_cannot_be_opened_is_named_with_its_folder(tmp_path: Path) -> None:
    write_folder(tmp_path, train=2)
    (tmp_path / "train" / "red" / "1.png").write_bytes(b"no image")
    with pytest.raises(ImageError, match=re.escape(str(Path("train", "red", "1.png")))):
        read_image_folder(tmp_path, "train", PLAIN, 2, 2)


def test_one_channel_is_read_as_one_channel(folder: Path) -> None:
    grey = Preprocessing(8, 8, (0.5,), (0.5,), "native")
    data = read_image_folder(folder, "test", grey, 2, 2)
    assert data.images.shape == (12, 1, 8, 8)
    first = np.asarray(Image.open(folder / "test" / "blue" / "0.png").convert("L"))
    np.testing.assert_array_equal(data.images[0, 0], first)


def counted(count: int) -> LabelledImages:
    """Images that are recognised by their grey, 10 for the first, 20 for the second and so on, of three classes."""
    greys = torch.arange(10, 10 * count + 10, 10, dtype=torch.uint8)
    return LabelledImages(
        repeat(greys, "image -> image 3 8 8").clone(), torch.arange(count) % 3, ("blue", "green", "red")
    )


def batches(seed: int, augmentation: Augmentation, count: int = 10) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(training_batches(counted(count), PLAIN, augmentation, 4, (8,), 0.3, seed))


def test_an_epoch_sees_an_image_at_most_once_and_whole_batches_only() -> None:
    seen = batches(0, Augmentation(jitter=0, mix=0))
    assert [len(pixels) for pixels, _ in seen] == [4, 4]
    pixels, targets = (torch.cat(part) for part in zip(*seen, strict=True))
    indices = (pixels * 25.5 - 1).mean((1, 2, 3)).round().long()
    torch.testing.assert_close(pixels, repeat((indices + 1) / 25.5, "image -> image 3 8 8"))
    assert len(set(indices.tolist())) == 8
    assert indices.tolist() != sorted(indices.tolist())
    expected = torch.full((8, 3), 0.1)
    expected[range(8), indices % 3] = 0.8
    torch.testing.assert_close(targets, expected)


def test_a_set_of_whole_batches_is_seen_completely() -> None:
    pixels = torch.cat([pixels for pixels, _ in batches(0, Augmentation(jitter=0, mix=0), count=12)])
    assert sorted((pixels[:, 0, 0, 0] * 25.5).round().tolist()) == list(range(1, 13))


def test_an_epoch_follows_from_its_seed() -> None:
    torch.manual_seed(1)
    first = batches(7, Augmentation())
    torch.manual_seed(2)
    second, other = batches(7, Augmentation()), batches(8, Augmentation())
    assert all(torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(first, second, strict=True))
    assert not torch.equal(first[0][0], other[0][0])


def test_pixels_are_standardised_after_the_augmentation() -> None:
    standard = replace(PLAIN, mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.2))
    arguments = (Augmentation(), 4, (8,), 0.3, 0)
    plain, _ = next(training_batches(counted(4), PLAIN, *arguments))
    pixels, _ = next(training_batches(counted(4), standard, *arguments))
    mean, std = (torch.tensor(part)[:, None, None] for part in (standard.mean, standard.std))
    torch.testing.assert_close(pixels * std + mean, plain)


def test_a_given_order_decides_which_images_an_epoch_sees() -> None:
    order = torch.tensor([7, 7, 2, 0, 5, 1, 9, 9, 3])
    plain = Augmentation(jitter=0, mix=0)
    seen = training_batches(counted(10), PLAIN, plain, 4, (8,), 0.3, 0, order=order)
    indices = torch.cat([(pixels * 25.5 - 1).mean((1, 2, 3)).round().long() for pixels, _ in seen])
    assert indices.tolist() == order[:8].tolist()


# Presets.


def write_digits(root: Path, **counts: int) -> Path:
    """Grey digits of 28×28 pixels, in many typefaces, shifted and turned: ``write_digits(root, train=24, test=10)``."""
    fonts = sorted(path for path in Path(get_data_path(), "fonts", "ttf").glob("DejaVu*.ttf") if "Dis" not in path.stem)
    random = np.random.default_rng(0)
    for split, count in counts.items():
        for digit in map(str, range(10)):
            (root / split / digit).mkdir(parents=True)
            for number in range(count):
                font = ImageFont.truetype(fonts[random.integers(len(fonts))], random.integers(18, 25))
                picture = Image.new("L", (28, 28))
                ImageDraw.Draw(picture).text(14 + random.uniform(-3, 3, 2), digit, 255, font, "mm")
                picture.rotate(random.uniform(-12, 12), Image.Resampling.BILINEAR).save(
                    root / split / digit / f"{number}.png"
                )
    return root


def test_the_preset_for_grey_pictures_learns_digits(tmp_path: Path) -> None:
    digits = write_digits(tmp_path / "digits", train=24, test=10)
    config = replace(PRESETS["grey"], batch_size=16, epochs=8, evaluate_every=8)
    model, accuracy = loop.train(digits, tmp_path / "run", config)
    # By chance it would be a tenth, with a standard deviation of 0.03.
    assert accuracy.images == 100 and accuracy.top1 > 0.25
    assert model.labels == tuple("0123456789") and model.network.config.layout(28, 28).grid_width == 7


def test_the_preset_of_the_checkpoint_that_ships_is_of_several_grids() -> None:
    config = PRESETS["cifar10"]
    assert config.sides(config.epochs) == (32, 48, 64) and config.register_tokens == 4


def test_the_preset_for_photographs_fits_what_may_ship() -> None:
    config = PRESETS["photos"]
    network = VisionTransformer(config.model_config(classes=120))
    assert 2 * sum(parameter.numel() for parameter in network.parameters()) < 15e6, "bytes in bfloat16"
    assert config.sides(0) == (48,) and config.sides(config.epochs) == (48, 80, 112)
    assert network.config.layout(112, 112).grid_width == 14 and config.register_tokens == 4


# Evaluation.


@pytest.mark.parametrize("batch_size", [1, 4, 13, 250])
def test_evaluation_is_what_numpy_computes(make_network: Callable[..., VisionTransformer], batch_size: int) -> None:
    network = make_network()
    preprocessing = Preprocessing(16, 24, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    images = torch.randint(0, 256, (13, 3, 16, 24), dtype=torch.uint8)
    data = LabelledImages(images, torch.arange(13) % 5, ("a", "b", "c", "d", "e"))
    found = evaluate(network, preprocessing, data, batch_size=batch_size)

    mean, std = (np.array(part)[:, None, None] for part in (preprocessing.mean, preprocessing.std))
    pixels = (images.numpy() / 255 - mean) / std
    logits = network(torch.from_numpy(pixels).float()).double().numpy()
    targets = data.targets.numpy()
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    right = logits.argmax(1) == targets
    assert 0 < right.sum() < 13, "a test set on which every mistake shows"
    assert found.images == 13
    assert found.top1 == pytest.approx(right.mean())
    assert found.loss == pytest.approx(-np.log(probabilities[range(13), targets]).mean(), rel=1e-4)
    assert found.per_class == {
        label: pytest.approx(right[targets == index].mean()) for index, label in enumerate(data.labels)
    }
    assert found.counts == {"a": 3, "b": 3, "c": 3, "d": 2, "e": 2}
    assert found.calibration_error == pytest.approx(binned(probabilities, targets), abs=1e-6)


def binned(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """The expected calibration error, bin by bin."""
    most, right = probabilities.max(1), probabilities.argmax(1) == targets
    edges, error = np.linspace(0, 1, 16), 0.0
    for low, high in pairwise(edges):
        inside = (most > low) & (most <= high)
        if inside.any():
            error += inside.mean() * abs(most[inside].mean() - right[inside].mean())
    return error


@pytest.mark.parametrize(
    ("share", "count", "low", "high"),
    # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I.
    [
        (81 / 263, 263, 0.2553, 0.3662),
        (15 / 148, 148, 0.0624, 0.1605),
        (0.0, 20, 0.0, 0.1611),
        (1 / 29, 29, 0.0061, 0.1718),
    ],
)
def test_an_interval_is_wilsons(share: float, count: int, low: float, high: float) -> None:
    found = Accuracy(share, 0.0, count, {"cat": share}, {"cat": count}, 0.0)
    assert found.interval() == found.interval("cat")
    assert found.interval() == pytest.approx((low, high), abs=6e-5)


def test_evaluation_refuses_images_of_other_classes(make_network: Callable[..., VisionTransformer]) -> None:
    with pytest.raises(DataError, match="3 classes in the images, 5 in the model"):
        evaluate(make_network(), PLAIN, counted(3))


def test_the_picture_of_the_log_has_every_class_above_its_attention(
    make_network: Callable[..., VisionTransformer],
) -> None:
    network = make_network(image_height=8, image_width=8, classes=3, register_tokens=1)
    picture = attention_picture(network, PLAIN, counted(6))
    assert picture.shape == (3, 2 * SIDE, 3 * SIDE)
    assert picture.dtype == np.uint8
    above = picture[:, :SIDE].reshape(3, SIDE, 3, SIDE)
    np.testing.assert_array_equal(above, np.broadcast_to(np.array([10, 20, 30])[None, None, :, None], above.shape))
    assert all(below.std() > 5 for below in np.split(picture[:, SIDE:], 3, axis=2))
