"""Training of a Vision Transformer from an image folder: interruptible, resumable, seeded, logged for TensorBoard."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from vitviz.callbacks import AttentionWatch
from vitviz.errors.kinds import ConfigError, DataError
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.vit import VisionTransformer
from vitviz.training.calibrate import calibrate, divide
from vitviz.training.config import TrainingConfig
from vitviz.training.data import LabelledImages, read_image_folder, training_batches
from vitviz.training.device import has_bfloat16
from vitviz.training.evaluate import Accuracy, accuracy_of, classify, evaluate
from vitviz.training.optimise import average_into, colour_limit, initialise, optimisers, schedule
from vitviz.training.out_of_distribution import detector_of
from vitviz.training.patch_dropout import forward_some
from vitviz.training.sampling import balanced_order
from vitviz.training.snapshots import Snapshotter
from vitviz.training.soft_labels import SoftLabels, feature_distance, read_soft_labels
from vitviz.training.state import COMPACT, STATE, Run
from vitviz.weights.model import Model
from vitviz.weights.native import save_checkpoint
from vitviz.weights.snapshots import FOLDER as SNAPSHOTS

CHECKPOINT, LOGS = "checkpoint.safetensors", "logs"
# Classes of which the log shows a picture.
LOGGED_CLASSES = 8
# On a CPU, a batch is computed in chunks of this many tokens, so that activations stay in the cache.
TOKENS_AT_ONCE = 4096


def train(
    images: Path,
    output: Path,
    config: TrainingConfig,
    snapshots: int = 0,
    resume_from: Path | None = None,
    terms: str = "",
    soft_labels: Path | None = None,
) -> tuple[Model, Accuracy]:
    """Train on ``images/train``, test on ``images/test``, and write a checkpoint into ``output``.

    An interrupted run continues after the last epoch that it completed, with the same result as without the interrupt.

    Args:
        images: a folder with ``train/CLASS/IMAGE`` and ``test/CLASS/IMAGE``.
        output: folder for the state, the TensorBoard logs, the snapshots and the checkpoint.
        config: settings of the run.
        snapshots: number of intermediate states to keep, from the first step to the last.
        resume_from: compact state of a run of the same network on the same images; the run starts from it if the output
            folder has no state yet.
        terms: terms of use of the weights, for the checkpoint's card.
        soft_labels: file with a teacher's probabilities, and optionally its features, of every training image, as
            :func:`vitviz.training.soft_labels.read_soft_labels` describes it.

    Raises:
        DataError: the classes of the splits differ, there are fewer images than in one batch, the soft labels belong
            to other images, or they have no features although these have a weight.
        ImageError: an image cannot be opened.
        ConfigError: the number of snapshots is out of range, or the loss is no longer finite.
        CheckpointError: the output folder holds a damaged run, a run with another configuration or other images, or
            snapshots without their run; or the compact state is missing, damaged or of another network.
    """
    side, patch = config.image_size, config.patch_size
    plain = Preprocessing(side, side, mean=(0.5,) * 3, std=(0.5,) * 3, fit="squash", color_profile=config.color_profile)
    # The smaller set first, so that a missing folder is reported sooner.
    test = read_image_folder(images, "test", plain, patch, patch)
    data = read_image_folder(images, "train", plain, patch, patch)
    if data.labels != test.labels:
        alone = [
            f"{', '.join(sorted(set(mine) - set(others)))} only in {split}"
            for split, mine, others in (("train", data.labels, test.labels), ("test", test.labels, data.labels))
            if set(mine) - set(others)
        ]
        raise DataError(f"{images}: {'; '.join(alone)}; expected the same classes in train and test")
    steps_per_epoch = (config.images_per_epoch or len(data)) // config.batch_size
    if steps_per_epoch < 1:
        raise DataError(f"{images}: {len(data)} training images are less than one batch of {config.batch_size}")
    teacher = None if soft_labels is None else read_soft_labels(soft_labels, data.paths, data.labels)
    if config.feature_weight and (teacher is None or not teacher.features.shape[1]):
        where = "no soft labels" if soft_labels is None else f"{soft_labels}: no array 'features' in it"
        raise DataError(f"{where}; feature_weight = {config.feature_weight:g} expects a teacher's features")
    mean, std = _statistics(data)
    preprocessing = replace(plain, mean=mean, std=std, detail=config.picture_detail or None)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bfloat16 = has_bfloat16(device)
    run = _new_run(config, data, teacher, device)
    output.mkdir(parents=True, exist_ok=True)
    snapshotter = Snapshotter(
        output / SNAPSHOTS, preprocessing, data.labels, config.epochs * steps_per_epoch, snapshots
    )
    if (output / STATE).exists():
        run.resume(output / STATE)
    else:
        if resume_from is not None:
            run.start_from(resume_from)
        if snapshotter.steps:
            snapshotter.refuse_others()
            # Before the first snapshot, so that a resumed run recognises its own.
            run.save(output / STATE)
    limit = None
    if config.colour_frequencies:
        limit = colour_limit(patch, config.colour_frequencies, std).to(device)
        _limit(run.network, limit)
        _limit(run.averaged, limit)
    if run.epoch == 0:
        snapshotter.take(run.averaged, 0)
    done = run.epoch * steps_per_epoch
    name = output.resolve().name
    with (
        # Purges the log of an interrupted epoch; the evaluation of the last complete one, at step `done`, stays.
        SummaryWriter(str(output / LOGS), purge_step=done + 1) as log,
        tqdm(total=config.epochs * steps_per_epoch, initial=done, unit="step", smoothing=0.05) as bar,
    ):
        if run.epoch < config.epochs:
            facts = {"preprocessing": preprocessing, "labels": test.labels}
            watch = AttentionWatch(run.averaged, test.examples(LOGGED_CLASSES), log, every=1, step=done, **facts)
        while run.epoch < config.epochs:
            _epoch(run, data, teacher, preprocessing, device, bfloat16, steps_per_epoch, bar, log, snapshotter, limit)
            run.epoch += 1
            if run.epoch % config.evaluate_every == 0 or run.epoch == config.epochs:
                done = run.epoch * steps_per_epoch
                for side in sorted({*config.sides(run.epoch - 1), config.image_size}):
                    accuracy = evaluate(run.averaged, preprocessing, test.at(side), device, bfloat16)
                    tag = "" if side == config.image_size else f" at {side} px"
                    log.add_scalar(f"test/accuracy{tag}", accuracy.top1, done)
                    log.add_scalar(f"test/loss{tag}", accuracy.loss, done)
                    summary = f"test accuracy{tag} {accuracy.top1:.2%}, loss {accuracy.loss:.3f}"
                    tqdm.write(f"epoch {run.epoch}: {summary}")
                watch(done)
            run.save(output / STATE)
            run.save_compact(output / COMPACT)
    model, accuracy = _finished_model(run, name, preprocessing, data, test, device)
    if terms:
        model = replace(model, card={**model.card, "terms": terms})
    save_checkpoint(output / CHECKPOINT, model)
    return model, accuracy


def _finished_model(
    run: Run,
    name: str,
    preprocessing: Preprocessing,
    data: LabelledImages,
    test: LabelledImages,
    device: torch.device,
) -> tuple[Model, Accuracy]:
    """The averaged network as a calibrated model, and its accuracy on the test images.

    Args:
        run: the completed run.
        name, preprocessing: of the model.
        data: training images.
        test: images for testing and calibration.
        device: device for testing.
    """
    config, network = run.config, run.averaged
    logits = {side: classify(network, preprocessing, test.at(side), device) for side in config.sides(config.epochs)}
    calibration = calibrate(logits[config.image_size], test.targets)
    if calibration is not None:
        assert isinstance(network.classifier, torch.nn.Linear)
        divide(network.classifier, calibration.temperature)
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
    detector = None if calibration is None else detector_of(network, preprocessing, data, test, device)
    network = network.to("cpu").eval()
    return Model(name, network, preprocessing, test.labels, card, ood_detector=detector), accuracy


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


def _new_run(config: TrainingConfig, data: LabelledImages, teacher: SoftLabels | None, device: torch.device) -> Run:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = VisionTransformer(config.model_config(len(data.labels)))
        initialise(network)
    network.to(device)
    averaged = copy.deepcopy(network).requires_grad_(False).eval()
    # On a CPU the backward pass of the fused kernel is slower than two matrix products at this size.
    for layer in network.encoder:
        layer.attention.fused = device.type != "cpu"
    rates = optimisers(network, config.muon_rate, config.adam_rate, config.weight_decay)
    head = None
    if config.feature_weight and teacher is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            head = torch.nn.Linear(config.width, teacher.features.shape[1]).to(device)
        rates[-1].add_param_group({"params": list(head.parameters())})
    for optimiser in rates:
        for group in optimiser.param_groups:
            group["highest_rate"] = group["lr"]
    images = {"classes": list(data.labels), "training images": len(data)}
    return Run(config, images, network, averaged, rates, head, None if teacher is None else teacher.digest)


def _epoch(
    run: Run,
    data: LabelledImages,
    teacher: SoftLabels | None,
    preprocessing: Preprocessing,
    device: torch.device,
    bfloat16: bool,
    steps_per_epoch: int,
    bar: tqdm,
    log: SummaryWriter,
    snapshotter: Snapshotter,
    limit: torch.Tensor | None,
) -> None:
    config, sides = run.config, run.config.sides(run.epoch)
    seed = config.seed * 1_000_003 + run.epoch
    order = None
    if config.class_balance or config.images_per_epoch:
        count = config.images_per_epoch or len(data)
        order = balanced_order(data.targets, count, config.class_balance, config.seed, run.epoch)
    batches = training_batches(
        data,
        preprocessing,
        config.augmentation,
        config.batch_size,
        sides,
        config.label_smoothing,
        seed,
        device,
        order,
        teacher,
        config.soft_label_weight,
    )
    run.network.train()
    # Not the generator of the batches, so that these are the same with and without patch dropout; nor its numbers.
    random = torch.Generator().manual_seed(-1 - seed)
    # Counted here, since tqdm does not count while it is disabled.
    for step, (pixels, targets) in enumerate(batches, run.epoch * steps_per_epoch):
        factor = schedule(step, config.epochs * steps_per_epoch, config.warmup, config.cooldown)
        for optimiser in run.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["highest_rate"] * factor
            optimiser.zero_grad(set_to_none=True)
        loss, distance, right = _backward(run, pixels, targets, device, bfloat16, random)
        for optimiser in run.optimisers:
            optimiser.step()
        if limit is not None:
            _limit(run.network, limit)
        average_into(run.averaged, run.network, step, config.average_decay)
        bar.update()
        done = step + 1
        snapshotter.take(run.averaged, done)
        if done % min(20, steps_per_epoch) == 0:
            mistake = float(loss)
            if not math.isfinite(mistake):
                raise ConfigError(
                    f"epoch {run.epoch + 1}: the loss is {mistake}; try a smaller muon_rate (now "
                    f"{config.muon_rate:g}) or adam_rate (now {config.adam_rate:g}), with another output folder"
                )
            log.add_scalar("train/loss", mistake, done)
            log.add_scalar("train/accuracy", float(right), done)
            if run.feature_head is not None:
                log.add_scalar("train/feature distance", float(distance), done)
            log.add_scalar("train/learning rate", factor, done)
            bar.set_postfix(
                epoch=run.epoch + 1, px=pixels.shape[-1], loss=f"{mistake:.3f}", accuracy=f"{float(right):.1%}"
            )


def _limit(network: VisionTransformer, limit: torch.Tensor) -> None:
    """Project the patch embedding, in place, so that it ignores high colour frequencies."""
    weight = network.patch_embedding.weight
    with torch.no_grad():
        weight.copy_(weight @ limit)


def _backward(
    run: Run,
    pixels: torch.Tensor,
    targets: torch.Tensor,
    device: torch.device,
    bfloat16: bool,
    random: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Accumulate the gradients of a batch.

    Returns:
        Means over the batch: cross-entropy, distance from the teacher's features, and accuracy, in [0, 1].
    """
    network, config = run.network, run.config
    layout = network.config.layout(*pixels.shape[-2:])
    seen = min(config.seen_patches or layout.patch_count, layout.patch_count)
    count = len(pixels)
    if device.type == "cpu":
        count = max(1, TOKENS_AT_ONCE // (layout.prefix_count + seen))
    classes = network.config.classes
    loss, distance, right = torch.zeros(3, device=device)
    for chunk, wanted in zip(pixels.split(count), targets.split(count), strict=True):
        with torch.autocast(device.type, torch.bfloat16) if bfloat16 else nullcontext():
            features = forward_some(network, chunk, seen, random)
            logits = network.classifier(features).float()
            predicted = None if run.feature_head is None else run.feature_head(features).float()
        labels = wanted[:, :classes]
        chunk_loss = F.cross_entropy(logits, labels, reduction="sum") / len(pixels)
        loss += chunk_loss.detach()
        if predicted is not None:
            chunk_distance = feature_distance(predicted, wanted[:, classes:]).sum() / len(pixels)
            distance += chunk_distance.detach()
            chunk_loss = chunk_loss + config.feature_weight * chunk_distance
        chunk_loss.backward()
        right += (logits.argmax(-1) == labels.argmax(-1)).sum() / len(pixels)
    return loss, distance, right
