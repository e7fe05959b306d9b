#!/usr/bin/env python3
"""Measure what one technique brings, in short runs: short_runs.py FOLDER [--only NAME...] [--steps 192]

Each run begins anew with the preset `photos` at 48×48 pixels and changes one thing; the averaged weights are tested on
4,000 test photographs at that size. `FOLDER` was written by `photos.py`. A row of a Markdown table is printed for each.
RandAugment is that of torchvision.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from mean import EVERYDAY
from torch import nn

import vitviz
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.vit import VisionTransformer
from vitviz.training.config import PRESETS, TrainingConfig
from vitviz.training.data import LabelledImages, read_image_folder, training_batches
from vitviz.training.device import has_bfloat16
from vitviz.training.evaluate import accuracy_of, classify
from vitviz.training.optimise import average_into, colour_limit, initialise, optimisers, schedule
from vitviz.training.sampling import balanced_order

SIDE, BATCH, TEST, CHUNK = 48, 128, 4000, 64
# Crops of a fifth of the area of these images still have 32 pixels.
STORED_SIDE = 72
# The average of so few steps must forget sooner.
AVERAGE_DECAY = 0.98
PATCH = 8
# Part of the patches that a masked picture lacks, and of the targets that the averaged weights give.
MASKED, SELF_TAUGHT = 0.6, 0.5

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Change:
    """What a run changes.

    Args:
        augmentation: settings of the augmentation.
        seed: of the run.
        stem: whether convolutions embed the patches.
        views: how often each image is in a batch.
        masked_first: whether as many steps come before in which the network completes pictures without labels.
        self_taught: whether the averaged weights give half of the targets, after the first quarter of the steps.
        randaugment: whether RandAugment changes the images besides.
    """

    augmentation: dict[str, Any]
    seed: int = 0
    stem: bool = False
    views: int = 1
    masked_first: bool = False
    self_taught: bool = False
    randaugment: bool = False


CHANGES = {
    "nothing, seed 0": Change({}),
    "nothing, seed 1": Change({}, seed=1),
    "a third of the pictures grey, a third solarized": Change({"greyscale": 0.33, "solarize": 0.33}),
    "RandAugment, two changes of strength 9": Change({}, randaugment=True),
    "three views of each picture in a batch": Change({}, views=3),
    "a stem of four convolutions": Change({}, stem=True),
    "half of the target by the averaged weights": Change({}, self_taught=True),
    "as many steps with masked patches before": Change({}, masked_first=True),
}


class Stem(nn.Module):
    """Three convolutions of stride 2 and one of one pixel (Xiao et al. 2021, "Early Convolutions Help Transformers See
    Better"), in place of the patch embedding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 24), (24, 48), (48, 96)):
            layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(96, width, 1))

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Embed ``"batch row column (channel height width)"``: ``"batch row column width"``."""
        pixels = rearrange(patches, "b row column (c h w) -> b c (row h) (column w)", c=3, h=PATCH)
        return rearrange(self.layers(pixels), "b width row column -> b row column width")


class MaskedEmbedding(nn.Module):
    """A patch embedding that replaces some patches by a learnt token.

    ``mask`` is ``"batch row column"``, set before each forward pass.
    """

    def __init__(self, embedding: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding, self.token = embedding, nn.Parameter(torch.zeros(width))
        self.mask = torch.zeros(0, dtype=torch.bool)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.embedding(patches)
        return torch.where(self.mask[..., None], self.token.to(embedded), embedded)


def autocast() -> Any:
    """Computes in bfloat16 where the processor does."""
    return torch.autocast("cpu", torch.bfloat16) if has_bfloat16(torch.device("cpu")) else nullcontext()


class ShortRuns:
    """The images of all runs.

    Args:
        folder: what ``photos.py`` wrote; of its training images, CIFAR-10's are left out.
        steps: of each run.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self.steps = steps
        like = vitviz.load().preprocessing
        self.preprocessing = replace(like, height=SIDE, width=SIDE, detail=None)
        whole = read_image_folder(folder, "train", self._sized(STORED_SIDE), PATCH, PATCH)
        own = [place for place, path in enumerate(whole.paths) if not Path(path).name.startswith("cifar10-")]
        paths = tuple(whole.paths[place] for place in own)
        self.training = LabelledImages(whole.images[own], whole.targets[own], whole.labels, paths)
        test = read_image_folder(folder, "test", self._sized(SIDE), PATCH, PATCH)
        chosen = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:TEST]
        paths = tuple(test.paths[place] for place in chosen.tolist())
        self.test = LabelledImages(test.images[chosen], test.targets[chosen], test.labels, paths)

    def _sized(self, side: int) -> Preprocessing:
        return replace(self.preprocessing, height=side, width=side)

    def row(self, name: str, change: Change) -> str:
        """Train, and give the row of the table."""
        preset = PRESETS["photos"]
        config = replace(
            preset,
            seed=change.seed,
            batch_size=BATCH // change.views * change.views,
            augmentation=replace(preset.augmentation, **change.augmentation),
        )
        torch.manual_seed(change.seed)
        network = VisionTransformer(config.model_config(len(self.test.labels)))
        initialise(network)
        # As in `vitviz train`: faster on processors.
        for layer in network.encoder:
            layer.attention.fused = False
        if change.stem:
            network.patch_embedding = Stem(config.width)  # type: ignore[assignment]
        if change.masked_first:
            self._pretrain(network, config)
        averaged = self._classify(network, config, change)
        accuracy = accuracy_of(classify(averaged, self.preprocessing, self.test), self.test)
        everyday, _ = accuracy.of(EVERYDAY)
        return f"| {name} | {accuracy.top1:.1%} | {accuracy.top5:.1%} | {accuracy.loss:.2f} | {everyday:.1%} |"

    def _batches(self, config: TrainingConfig, views: int) -> Batches:
        """One epoch of the run's steps, at one size."""
        order = balanced_order(
            self.training.targets, self.steps * config.batch_size // views, config.class_balance, config.seed, 0
        )
        order = torch.cat([part.repeat(views) for part in order.split(config.batch_size // views)])
        return training_batches(
            self.training,
            self.preprocessing,
            config.augmentation,
            config.batch_size,
            (SIDE,),
            config.label_smoothing,
            config.seed,
            order=order,
        )

    def _steps(
        self, network: VisionTransformer, config: TrainingConfig, extra: list[nn.Parameter], batches: Batches
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """The batches; after each, the optimisers step with the gradients that it left."""
        rates = optimisers(network, config.muon_rate, config.adam_rate, config.weight_decay)
        if extra:
            rates.append(torch.optim.AdamW(extra, config.adam_rate, (0.9, 0.98), weight_decay=config.weight_decay))
        highest = [[group["lr"] for group in rate.param_groups] for rate in rates]
        limit = colour_limit(PATCH, config.colour_frequencies, self.preprocessing.std)
        network.train()
        for step, (pixels, targets) in enumerate(batches):
            for rate, each in zip(rates, highest, strict=True):
                for group, value in zip(rate.param_groups, each, strict=True):
                    group["lr"] = value * schedule(step, self.steps, config.warmup)
                rate.zero_grad(set_to_none=True)
            yield step, pixels, targets
            for rate in rates:
                rate.step()
            if isinstance(network.patch_embedding, nn.Linear):
                with torch.no_grad():
                    network.patch_embedding.weight.copy_(network.patch_embedding.weight @ limit)

    def _classify(self, network: VisionTransformer, config: TrainingConfig, change: Change) -> VisionTransformer:
        """Train with labels. Returns the averaged network."""
        averaged = copy.deepcopy(network).requires_grad_(False).eval()
        more = self._randaugment() if change.randaugment else None
        step = 0
        for step, images, targets in self._steps(network, config, [], self._batches(config, change.views)):
            if step:
                average_into(averaged, network, step - 1, AVERAGE_DECAY)
            pixels = images if more is None else more(images)
            if change.self_taught and step >= self.steps // 4:
                with torch.no_grad(), autocast():
                    targets = torch.lerp(targets, averaged(pixels).float().softmax(-1), SELF_TAUGHT)
            for chunk, labels in zip(pixels.split(CHUNK), targets.split(CHUNK), strict=True):
                with autocast():
                    logits = network(chunk)
                (F.cross_entropy(logits.float(), labels, reduction="sum") / len(pixels)).backward()
        average_into(averaged, network, step, AVERAGE_DECAY)
        # The statistics of a stem's normalisation are no parameters.
        for mine, trained in zip(averaged.buffers(), network.buffers(), strict=True):
            mine.copy_(trained)
        return averaged

    def _pretrain(self, network: VisionTransformer, config: TrainingConfig) -> None:
        """Train without labels: the pixels of masked patches (Xie et al. 2022, "SimMIM")."""
        masked = MaskedEmbedding(network.patch_embedding, config.width)
        pixels_of = nn.Linear(config.width, 3 * PATCH**2)
        config = replace(config, augmentation=replace(config.augmentation, mix=0, plain_ground=0))
        random, embedding = torch.Generator().manual_seed(0), network.patch_embedding
        extra = [masked.token, *pixels_of.parameters()]
        for _, images, _ in self._steps(network, config, extra, self._batches(config, 1)):
            network.patch_embedding = masked  # type: ignore[assignment]
            for chunk in images.split(CHUNK):
                patches = rearrange(chunk, "b c (row h) (column w) -> b row column (c h w)", h=PATCH, w=PATCH)
                masked.mask = torch.rand(patches.shape[:3], generator=random) < MASKED
                with autocast():
                    tokens, layout = network.embed(chunk)
                    for layer in network.encoder:
                        tokens = layer(tokens, None, layout.token_count)
                found = pixels_of(tokens.float()[:, layout.prefix_count :]).view_as(patches)
                wrong = (found - F.layer_norm(patches, patches.shape[-1:])).abs().mean(-1)
                ((wrong * masked.mask).sum() / masked.mask.sum() * len(chunk) / len(images)).backward()
            network.patch_embedding = embedding

    def _randaugment(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """RandAugment (Cubuk et al. 2020) of normalised pixels; four images share the changes, for speed."""
        from torchvision.transforms.v2 import RandAugment

        change = RandAugment(2, 9)
        mean, std = (torch.tensor(each)[:, None, None] for each in (self.preprocessing.mean, self.preprocessing.std))

        def changed(pixels: torch.Tensor) -> torch.Tensor:
            values = ((pixels * std + mean).clamp(0, 1) * 255).round().byte()
            return self.preprocessing.standardise(torch.cat([change(each) for each in values.split(4)]).float() / 255)

        return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=CHANGES, metavar="NAME", help=", ".join(CHANGES))
    parser.add_argument("--steps", type=int, default=192)
    options = parser.parse_args()

    names = options.only or list(CHANGES)
    if any(CHANGES[name].randaugment for name in names):
        # Better missing now than after the first runs.
        import torchvision.transforms.v2  # noqa: F401
    runs = ShortRuns(options.folder, options.steps)
    print("| changed | top-1 | top-5 | cross-entropy | everyday classes |\n| --- | --- | --- | --- | --- |", flush=True)
    for name in names:
        print(runs.row(name, CHANGES[name]), flush=True)


if __name__ == "__main__":
    main()
