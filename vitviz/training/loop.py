"""Trains a Vision Transformer from an image folder: interruptible, resumable, seeded, and watched in TensorBoard."""

from __future__ import annotations

import copy
import math
import os
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from vitviz.errors import CheckpointError, ConfigError, DataError
from vitviz.preprocessing import Preprocessing
from vitviz.training.calibrate import calibrate, divide
from vitviz.training.config import TrainingConfig
from vitviz.training.data import LabelledImages, read_image_folder, training_batches
from vitviz.training.evaluate import Accuracy, accuracy_of, classify, evaluate
from vitviz.training.optimise import average_into, initialise, optimisers, schedule
from vitviz.training.snapshots import Snapshotter
from vitviz.training.watch import attention_picture
from vitviz.vit import VisionTransformer
from vitviz.weights.checkpoint import save_checkpoint
from vitviz.weights.model import Model
from vitviz.weights.snapshots import FOLDER as SNAPSHOTS

STATE, CHECKPOINT, LOGS = "state.pt", "checkpoint.safetensors", "logs"


@dataclass
class Run:
    """The state of a run: what an interrupt must not lose."""

    config: TrainingConfig
    images: dict[str, Any]
    network: VisionTransformer
    averaged: VisionTransformer
    optimisers: list[torch.optim.Optimizer]
    epoch: int = 0

    def save(self, path: Path) -> None:
        """Write everything that a resume needs, whole or not at all."""
        partial = path.with_name(path.name + ".partial")
        torch.save(
            {
                "config": asdict(self.config),
                "images": self.images,
                "epoch": self.epoch,
                "network": self.network.state_dict(),
                "averaged": self.averaged.state_dict(),
                "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            },
            partial,
        )
        os.replace(partial, path)

    def resume(self, path: Path) -> None:
        """Continue from what :meth:`save` wrote.

        Raises:
            CheckpointError: the file is damaged, or belongs to a run with another configuration or other images.
        """
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
            now = {**_settings(asdict(self.config)), **self.images}
            before = {**_settings(state["config"]), **state["images"]}
            changed = [f"{key} was {before.get(key)}, now {now[key]}" for key in now if before.get(key) != now[key]]
            if changed:
                raise CheckpointError(f"{path}: belongs to another run ({'; '.join(changed)}); choose another folder")
            self.network.load_state_dict(state["network"])
            self.averaged.load_state_dict(state["averaged"])
            for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
                optimiser.load_state_dict(saved)
            self.epoch = int(state["epoch"])
        except CheckpointError:
            raise
        # Every damage has an error of its own, most with paragraphs of advice on the internals of torch.
        except Exception as error:
            raise CheckpointError(
                f"{path}: damaged, or not written by `vitviz train` ({type(error).__name__}); remove it to start afresh"
            ) from error


def train(images: Path, output: Path, config: TrainingConfig, snapshots: int = 0) -> tuple[Model, Accuracy]:
    """Train on ``images/train``, test on ``images/test``, and leave a checkpoint in ``output``.

    A run that was interrupted continues from its last whole epoch, with the same result as if it had not been.

    Args:
        images: a folder with ``train/CLASS/IMAGE`` and ``test/CLASS/IMAGE``.
        output: holds the state, the TensorBoard logs, the snapshots and the checkpoint.
        config: of the run.
        snapshots: how many states are kept on the way, from the first step to the last.

    Raises:
        DataError: the images cannot be trained on.
        ImageError: one of them cannot be opened.
        ConfigError: this torch has no Muon optimiser, the number of snapshots is out of range, or the loss has left
            the finite numbers.
        CheckpointError: the output folder holds a run with another configuration or other images, a damaged one, or
            the snapshots of one that is not there.
    """
    side, patch = config.image_size, config.patch_size
    plain = Preprocessing(side, side, mean=(0.5,) * 3, std=(0.5,) * 3, fit="squash")
    # The smaller set first: what is missing in the folder is then told sooner.
    test = read_image_folder(images, "test", plain, patch, patch)
    data = read_image_folder(images, "train", plain, patch, patch)
    if data.labels != test.labels:
        alone = [
            f"{', '.join(sorted(set(mine) - set(others)))} only in {split}"
            for split, mine, others in (("train", data.labels, test.labels), ("test", test.labels, data.labels))
            if set(mine) - set(others)
        ]
        raise DataError(f"{images}: {'; '.join(alone)}; expected the same classes in train and test")
    steps_per_epoch = len(data) // config.batch_size
    if steps_per_epoch < 1:
        raise DataError(f"{images}: {len(data)} training images are less than one batch of {config.batch_size}")
    mean, std = _statistics(data)
    preprocessing = replace(plain, mean=mean, std=std)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bfloat16 = has_bfloat16(device)
    run = _new_run(config, data, device)
    output.mkdir(parents=True, exist_ok=True)
    taken = Snapshotter(output / SNAPSHOTS, preprocessing, data.labels, config.epochs * steps_per_epoch, snapshots)
    if (output / STATE).exists():
        run.resume(output / STATE)
    elif taken.steps:
        taken.refuse_others()
        # Before the first snapshot, which an interrupted run would else take for another's.
        run.save(output / STATE)
    if run.epoch == 0:
        taken.take(run.averaged, 0)
    done = run.epoch * steps_per_epoch
    name, sides = output.resolve().name, config.sides(config.epochs)
    with (
        # What an interrupted epoch logged is purged; the last whole epoch's evaluation, at the step `done`, stays.
        SummaryWriter(str(output / LOGS), purge_step=done + 1) as log,
        tqdm(total=config.epochs * steps_per_epoch, initial=done, unit="step", smoothing=0.05) as bar,
    ):
        while run.epoch < config.epochs:
            _epoch(run, data, preprocessing, device, bfloat16, steps_per_epoch, bar, log, taken)
            run.epoch += 1
            if run.epoch % config.evaluate_every == 0 or run.epoch == config.epochs:
                done = run.epoch * steps_per_epoch
                for side in sides:
                    accuracy = evaluate(run.averaged, preprocessing, test.at(side), device, bfloat16)
                    tag = "" if side == config.image_size else f" at {side} px"
                    log.add_scalar(f"test/accuracy{tag}", accuracy.top1, done)
                    log.add_scalar(f"test/loss{tag}", accuracy.loss, done)
                    said = f"test accuracy{tag} {accuracy.top1:.2%}, loss {accuracy.loss:.3f}"
                    tqdm.write(f"epoch {run.epoch}: {said}")
                log.add_image("attention rollout", attention_picture(run.averaged, preprocessing, test), done)
            run.save(output / STATE)
    model, accuracy = _finished(run, name, preprocessing, test, device, f"{len(data):,}")
    save_checkpoint(output / CHECKPOINT, model)
    return model, accuracy


def _finished(
    run: Run, name: str, preprocessing: Preprocessing, test: LabelledImages, device: torch.device, images: str
) -> tuple[Model, Accuracy]:
    """The averaged network as a model that knows how far it can be believed.

    Args:
        run, name, preprocessing: of the model.
        test: the images that it is tested and calibrated on.
        device: to test it on.
        images: how many it was trained on, in words.
    """
    config, network = run.config, run.averaged
    logits = {side: classify(network, preprocessing, test.at(side), device) for side in config.sides(config.epochs)}
    found = calibrate(logits[config.image_size], test.targets)
    if found is not None:
        assert isinstance(network.classifier, torch.nn.Linear)
        divide(network.classifier, found.temperature)
        logits = {side: each / found.temperature for side, each in logits.items()}
    accuracies = {side: accuracy_of(each, test) for side, each in logits.items()}
    accuracy = accuracies[config.image_size]
    top1 = ", ".join(f"{each.top1:.2%} at {side} pixels" for side, each in accuracies.items())
    card = {
        "data": f"{images} training and {len(test):,} test images of {len(test.labels)} classes",
        "epochs": str(config.epochs),
        "top-1 accuracy": f"{top1 if len(logits) > 1 else f'{accuracy.top1:.2%}'} of {accuracy.images:,} test images",
        "calibration": "none: too few test images or mistakes to learn from" if found is None else found.said,
    }
    least = None if found is None else found.least_evidence
    return Model(name, network.to("cpu").eval(), preprocessing, test.labels, card, least_evidence=least), accuracy


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def _statistics(data: LabelledImages) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel over the training images, in [0, 1]."""
    sums, squares, count = torch.zeros(3), torch.zeros(3), 0
    for images in data.images.split(5000):
        values = images.float() / 255
        sums += values.sum((0, 2, 3))
        squares += values.square().sum((0, 2, 3))
        count += values[:, 0].numel()
    mean = sums / count
    std = (squares / count - mean.square()).clamp(min=1e-6).sqrt()
    return tuple(round(value, 4) for value in mean.tolist()), tuple(round(value, 4) for value in std.tolist())


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as plain values, with the fields of its augmentation beside its own."""
    flat = {**config, **config["augmentation"]}
    return {name: value for name, value in flat.items() if name != "augmentation"}


def _new_run(config: TrainingConfig, data: LabelledImages, device: torch.device) -> Run:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = VisionTransformer(config.model_config(len(data.labels)))
        initialise(network)
    network.to(device)
    averaged = copy.deepcopy(network).requires_grad_(False).eval()
    # On a processor the backward pass of the fused kernel is slower than two matrix products at this size.
    for layer in network.encoder:
        layer.attention.fused = device.type != "cpu"
    rates = optimisers(network, config.muon_rate, config.adam_rate, config.weight_decay)
    for optimiser in rates:
        for group in optimiser.param_groups:
            group["highest_rate"] = group["lr"]
    return Run(config, {"classes": list(data.labels), "training images": len(data)}, network, averaged, rates)


def _epoch(
    run: Run,
    data: LabelledImages,
    preprocessing: Preprocessing,
    device: torch.device,
    bfloat16: bool,
    steps_per_epoch: int,
    bar: tqdm,
    log: SummaryWriter,
    taken: Snapshotter,
) -> None:
    config, sides = run.config, run.config.sides(run.epoch)
    seed = config.seed * 1_000_003 + run.epoch
    batches = training_batches(
        data, preprocessing, config.augmentation, config.batch_size, sides, config.label_smoothing, seed, device
    )
    run.network.train()
    # Counted here: the bar does not count where the environment switches it off.
    for step, (pixels, targets) in enumerate(batches, run.epoch * steps_per_epoch):
        factor = schedule(step, config.epochs * steps_per_epoch, config.warmup)
        for optimiser in run.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["highest_rate"] * factor
            optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16) if bfloat16 else nullcontext():
            logits = run.network(pixels)
        loss = F.cross_entropy(logits.float(), targets)
        loss.backward()
        for optimiser in run.optimisers:
            optimiser.step()
        average_into(run.averaged, run.network, step, config.average_decay)
        bar.update()
        done = step + 1
        taken.take(run.averaged, done)
        if done % min(20, steps_per_epoch) == 0:
            mistake = float(loss.detach())
            if not math.isfinite(mistake):
                raise ConfigError(
                    f"epoch {run.epoch + 1}: the loss is {mistake}; try a smaller muon_rate (now "
                    f"{config.muon_rate:g}) or adam_rate (now {config.adam_rate:g}), with another output folder"
                )
            right = float((logits.argmax(-1) == targets.argmax(-1)).float().mean())
            log.add_scalar("train/loss", mistake, done)
            log.add_scalar("train/accuracy", right, done)
            log.add_scalar("train/learning rate", factor, done)
            bar.set_postfix(epoch=run.epoch + 1, px=pixels.shape[-1], loss=f"{mistake:.3f}", accuracy=f"{right:.1%}")
