"""Training of a Vision Transformer from an image folder: interruptible, resumable, seeded, logged for TensorBoard."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from vitviz.callbacks import AttentionWatch
from vitviz.errors.kinds import CheckpointError, ConfigError, DataError
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.vit import VisionTransformer
from vitviz.progress import progress_bar
from vitviz.system.atomic import atomic_write
from vitviz.training.calibrate import calibrate
from vitviz.training.data import LabelledImages, read_image_folder, training_batches
from vitviz.training.evaluate import Accuracy, accuracy_of, evaluate, has_bfloat16, logits_of
from vitviz.training.presets import TrainingConfig
from vitviz.weights.model import Model
from vitviz.weights.native import save_checkpoint
from vitviz.weights.snapshots import FOLDER as SNAPSHOTS
from vitviz.weights.snapshots import files_by_step, snapshot_path

CHECKPOINT, LOGS, STATE = "checkpoint.safetensors", "logs", "state.pt"
MAX_SNAPSHOTS = 100
# Classes of which the log shows a picture.
LOGGED_CLASSES = 8
# On a CPU, a batch is computed in chunks of this many tokens, so that activations stay in the cache.
TOKENS_AT_ONCE = 4096


def train(
    images: Path, output: Path, config: TrainingConfig, snapshots: int = 0, terms: str = ""
) -> tuple[Model, Accuracy]:
    """Train on ``images/train``, test on ``images/test``, and write a checkpoint into ``output``.

    An interrupted run continues after the last epoch that it completed, with the same result as without the interrupt.

    Args:
        images: a folder with ``train/CLASS/IMAGE`` and ``test/CLASS/IMAGE``.
        output: folder for the state, the TensorBoard logs, the snapshots and the checkpoint.
        config: settings of the run.
        snapshots: number of intermediate states to keep, from the first step to the last.
        terms: terms of use of the weights, for the checkpoint's card.

    Raises:
        DataError: the classes of the splits differ, there is one alone, or there are fewer images than in one batch.
        ImageError: an image cannot be opened.
        ConfigError: the number of snapshots is out of range, or the loss is no longer finite.
        CheckpointError: the output folder holds a damaged run, a run with another configuration or other images, or
            snapshots without their run.
    """
    run = _new_run(images, output, config, snapshots)
    state, step = output / STATE, run.epoch * run.steps_per_epoch
    with (
        # Purges the log of an interrupted epoch; the evaluation of the last complete one, at this step, stays.
        SummaryWriter(str(output / LOGS), purge_step=step + 1) as log,
        progress_bar("training", total=run.all_steps, initial=step, unit="step", smoothing=0.05) as bar,
    ):
        if run.epoch < config.epochs:
            examples = run.test.examples(LOGGED_CLASSES)
            facts = {"preprocessing": run.preprocessing, "labels": run.test.labels}
            watch = AttentionWatch(run.averaged, examples, log, every=1, step=step, **facts)
        while run.epoch < config.epochs:
            for step, (loss, right, side) in enumerate(run.steps(), run.epoch * run.steps_per_epoch + 1):
                bar.update()
                if step % min(20, run.steps_per_epoch) == 0:
                    if not math.isfinite(loss):
                        raise ConfigError(
                            f"epoch {run.epoch + 1}: the loss is {loss}; try a smaller learning_rate (now "
                            f"{config.learning_rate:g}), with another output folder"
                        )
                    log.add_scalar("train/loss", float(loss), step)
                    log.add_scalar("train/accuracy", float(right), step)
                    log.add_scalar("train/learning rate", schedule(step - 1, run.all_steps, config.warmup), step)
                    bar.set_postfix(epoch=run.epoch + 1, px=side, loss=f"{float(loss):.3f}", accuracy=f"{right:.1%}")
            run.epoch += 1
            if run.epoch % config.evaluate_every == 0 or run.epoch == config.epochs:
                for side in sorted({*config.sides(run.epoch - 1), config.image_size}):
                    found = evaluate(run.averaged, run.preprocessing, run.test.at(side), run.device, run.bfloat16)
                    tag = "" if side == config.image_size else f" at {side} px"
                    log.add_scalar(f"test/accuracy{tag}", found.top1, step)
                    log.add_scalar(f"test/loss{tag}", found.loss, step)
                    tqdm.write(f"epoch {run.epoch}: test accuracy{tag} {found.top1:.2%}, loss {found.loss:.3f}")
                watch(step)
            run.save(state)
    model, accuracy = _finished_model(run, output.resolve().name)
    if terms:
        model = replace(model, card={**model.card, "terms": terms})
    save_checkpoint(output / CHECKPOINT, model)
    return model, accuracy


@dataclass
class Run:
    """A training run between two epochs; ``averaged`` is the moving average of the network's weights."""

    config: TrainingConfig
    data: LabelledImages
    test: LabelledImages
    preprocessing: Preprocessing
    device: torch.device
    network: VisionTransformer
    averaged: VisionTransformer
    optimiser: torch.optim.Optimizer
    # The folder of the snapshots, and the steps after which one is taken.
    snapshots: tuple[Path, frozenset[int]]
    epoch: int = 0

    @property
    def steps_per_epoch(self) -> int:
        return len(self.data) // self.config.batch_size

    @property
    def all_steps(self) -> int:
        return self.config.epochs * self.steps_per_epoch

    @property
    def bfloat16(self) -> bool:
        return has_bfloat16(self.device)

    def steps(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        """Train for one epoch; after each step, the loss, the accuracy in [0, 1], and the side of the images."""
        self.network.train()
        batches = training_batches(self.data, self.preprocessing, self.config, self.epoch, self.device)
        for step, (pixels, targets) in enumerate(batches, self.epoch * self.steps_per_epoch):
            for group in self.optimiser.param_groups:
                group["lr"] = self.config.learning_rate * schedule(step, self.all_steps, self.config.warmup)
            self.optimiser.zero_grad(set_to_none=True)
            loss, right = self.backward(pixels, targets)
            self.optimiser.step()
            average_into(self.averaged, self.network, step, self.config.average_decay)
            self.take_snapshot(step + 1)
            yield loss, right, pixels.shape[-1]

    def backward(self, pixels: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Accumulate the gradients of a batch; its mean cross-entropy and its accuracy, in [0, 1]."""
        tokens = self.network.config.layout(*pixels.shape[-2:]).token_count
        count = max(1, TOKENS_AT_ONCE // tokens) if self.device.type == "cpu" else len(pixels)
        loss, right = torch.zeros(2, device=self.device)
        for chunk, truth in zip(pixels.split(count), targets.split(count), strict=True):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                logits = self.network(chunk).float()
            chunk_loss = F.cross_entropy(logits, truth, reduction="sum") / len(pixels)
            chunk_loss.backward()
            loss += chunk_loss.detach()
            right += (logits.argmax(-1) == truth.argmax(-1)).sum() / len(pixels)
        return loss, right

    def take_snapshot(self, step: int) -> None:
        """Write the averaged weights in float16, if the schedule has a snapshot after this step."""
        folder, steps = self.snapshots
        if step not in steps:
            return
        folder.mkdir(exist_ok=True)
        card = {
            "training step": f"{step:,} of {self.all_steps:,}",
            "calibration": "none: a state on the way, rounded to float16",
        }
        rounded = copy.deepcopy(self.averaged).to("cpu", torch.float16)
        model = Model(f"step {step:,}", rounded, self.preprocessing, self.data.labels, card)
        save_checkpoint(snapshot_path(folder, step), model)

    def settings(self) -> dict[str, Any]:
        """What a run that resumes this one must share."""
        return {**asdict(self.config), "classes": list(self.data.labels), "training images": len(self.data)}

    def save(self, path: Path) -> None:
        """Write everything that a resume needs, atomically."""
        parts = {name: getattr(self, name).state_dict() for name in ("network", "averaged", "optimiser")}
        with atomic_write(path) as stream:
            torch.save({"settings": self.settings(), "epoch": self.epoch, **parts}, stream)

    def resume(self, path: Path) -> None:
        """Continue from what :meth:`save` wrote.

        Raises:
            CheckpointError: the file is damaged, or belongs to a run with other settings or other images.
        """
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
            before, now = state["settings"], self.settings()
            changed = [f"{key} was {before.get(key)}, now {now[key]}" for key in now if before.get(key) != now[key]]
            if not changed:
                for name in ("network", "averaged", "optimiser"):
                    getattr(self, name).load_state_dict(state[name])
                self.epoch = int(state["epoch"])
        # torch raises many kinds of error for damaged files, most with long advice.
        except Exception as error:
            raise CheckpointError(
                f"{path}: damaged, or not written by `vitviz train` ({type(error).__name__}); remove it to start afresh"
            ) from error
        if changed:
            raise CheckpointError(f"{path}: belongs to another run ({'; '.join(changed)}); choose another folder")


def _new_run(images: Path, output: Path, config: TrainingConfig, snapshots: int) -> Run:
    """The run on the images of a folder: at its beginning, or where the state in the output folder left it."""
    side, patch = config.image_size, config.patch_size
    plain = Preprocessing(side, side, mean=(0.5,) * 3, std=(0.5,) * 3, fit="squash", color_profile=config.color_profile)
    # The smaller set first, so that a missing folder is reported sooner.
    test = read_image_folder(images, "test", plain, patch, patch)
    data = read_image_folder(images, "train", plain, patch, patch)
    both = {"train": set(data.labels), "test": set(test.labels)}
    only = {split: labels - (both["train"] & both["test"]) for split, labels in both.items()}
    alone = [f"{', '.join(sorted(labels))} only in {split}" for split, labels in only.items() if labels]
    if alone:
        raise DataError(f"{images}: {'; '.join(alone)}; expected the same classes in train and test")
    if len(data.labels) == 1:
        raise DataError(f"{images}: one class alone, {data.labels[0]!r}; expected CLASS/IMAGE of two classes or more")
    if len(data) < config.batch_size:
        raise DataError(
            f"{images}: {len(data)} training images are less than one batch of {config.batch_size}; expected more, or "
            f"batch_size={len(data)}"
        )
    if not 0 <= snapshots <= MAX_SNAPSHOTS:
        raise ConfigError(f"snapshots = {snapshots}: expected a number from 0 to {MAX_SNAPSHOTS}")

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = VisionTransformer(config.model_config(len(data.labels)))
        initialise(network)
    network.to(device)
    averaged = copy.deepcopy(network).requires_grad_(False).eval()
    # On a CPU the backward pass of the fused kernel is slower than two matrix products at this size.
    for layer in network.encoder:
        layer.attention.fused = device.type != "cpu"
    optimiser = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.98), weight_decay=config.weight_decay)
    mean, std = _statistics(data)
    preprocessing = replace(plain, mean=mean, std=std)
    steps = snapshot_steps(config.epochs * (len(data) // config.batch_size), snapshots)
    run = Run(config, data, test, preprocessing, device, network, averaged, optimiser, (output / SNAPSHOTS, steps))
    output.mkdir(parents=True, exist_ok=True)
    if (output / STATE).exists():
        run.resume(output / STATE)
    elif steps:
        if files_by_step(output / SNAPSHOTS):
            raise CheckpointError(
                f"{output / SNAPSHOTS}: snapshots of another run; remove them, or choose another folder"
            )
        # Before the first snapshot, so that a resumed run recognises its own.
        run.save(output / STATE)
        run.take_snapshot(0)
    return run


def snapshot_steps(total: int, count: int) -> frozenset[int]:
    """The steps after which a snapshot is taken: the first, the last, and most between them early, where most changes.

    Args:
        total: number of steps of the run.
        count: number of snapshots; a short run has fewer.
    """
    if count == 1:
        return frozenset({total})
    return frozenset(round(total * (index / (count - 1)) ** 3) for index in range(count))


def initialise(network: VisionTransformer) -> None:
    """Set initial weights: small normal ones, no biases, and a classifier of zeros."""
    for parameter in (network.prefix_tokens, network.positions):
        nn.init.normal_(parameter, std=0.02)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0 if module is network.classifier else 0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def schedule(step: int, steps: int, warmup: float) -> float:
    """The factor of the learning rate: a linear warm-up, then half a cosine to zero (Loshchilov & Hutter 2017).

    Args:
        step: index of the step, from 0.
        steps: number of steps of the run.
        warmup: fraction of the steps.
    """
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def average_into(averaged: nn.Module, network: nn.Module, step: int, decay: float) -> None:
    """Update the exponential moving average of the weights; it decays faster in the first steps."""
    weight = 1 - min(decay, (1 + step) / (10 + step))
    with torch.no_grad():
        torch._foreach_lerp_(list(averaged.parameters()), list(network.parameters()), weight)


def _statistics(data: LabelledImages) -> tuple[tuple[float, ...], ...]:
    """Mean and standard deviation of every channel over the training images, in [0, 1]."""
    values = torch.zeros(2, 3, dtype=torch.float64)
    for images in data.images.split(5000):
        pixels = images.double() / 255
        values += torch.stack([pixels.mean((0, 2, 3)), pixels.square().mean((0, 2, 3))]) * (len(images) / len(data))
    mean, square = values
    std = (square - mean.square()).clamp(min=1e-6).sqrt()
    return tuple(tuple(round(value, 4) for value in each.tolist()) for each in (mean, std))


def _finished_model(run: Run, name: str) -> tuple[Model, Accuracy]:
    """The averaged network as a calibrated model, and its accuracy on the test images."""
    config, network, data, test = run.config, run.averaged, run.data, run.test
    logits = {
        side: logits_of(network, run.preprocessing, test.at(side).images, run.device)
        for side in sorted({*config.sides(config.epochs), config.image_size})
    }
    calibration = calibrate(logits[config.image_size], test.targets)
    if calibration is not None:
        with torch.no_grad():
            for parameter in network.classifier.parameters():
                parameter.div_(calibration.temperature)
        logits = {side: each / calibration.temperature for side, each in logits.items()}
    accuracies = {side: accuracy_of(each, test) for side, each in logits.items()}
    accuracy = accuracies[config.image_size]
    top1 = ", ".join(f"{each.top1:.2%} at {side} pixels" for side, each in accuracies.items())
    card = {
        "data": f"{len(data):,} training and {len(test):,} test images of {len(test.labels)} classes",
        "epochs": str(config.epochs),
        "top-1 accuracy": f"{top1 if len(logits) > 1 else f'{accuracy.top1:.2%}'} of {accuracy.images:,} test images",
        "calibration": "none: too few test images or mistakes to learn from"
        if calibration is None
        else calibration.summary,
    }
    network = network.to("cpu").eval()
    return Model(name, network, run.preprocessing, test.labels, card), accuracy
