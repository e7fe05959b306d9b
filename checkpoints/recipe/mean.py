#!/usr/bin/env python3
"""Write the mean of the weights of states as a checkpoint: mean.py FOLDER OUT STATE... [--raise-everyday 0.75]

Each `STATE` is a `compact.pt` of a run of the same network; all go back to one of them (Wortsman et al. 2022, "Robust
fine-tuning of zero-shot models"; the same 2022, "Model soups"). `--weights` gives their shares, by default equal.
`--raise-everyday` adds a number to the logits of the classes that visitors show most: the prior of these classes in use
is higher than in training (Menon et al. 2021, "Long-tail learning via logit adjustment"). The mean is calibrated
on `FOLDER/test` and says so in its card; its OOD detector is fitted to 5,000 images of `FOLDER/train`. With
`--bfloat16` the weights are rounded to half the bytes, before anything is measured. `--picture-detail` shows the model
pictures with another detail than the last run did. With `--state FILE` the mean is
also written as a `compact.pt`, to go on from. One state is its own mean.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import vitviz
from vitviz.models.vit import VisionTransformer
from vitviz.training.calibrate import calibrate, divide
from vitviz.training.config import Augmentation, TrainingConfig
from vitviz.training.data import read_image_folder
from vitviz.training.evaluate import accuracy_of, classify
from vitviz.training.out_of_distribution import detector_of
from vitviz.weights.model import Model
from vitviz.weights.native import save_checkpoint

NAME = "vitviz-photos"
# Of the training images; photos.py adds them.
CIFAR10 = 30_000
EVERYDAY = "airplane", "bird", "car", "cat", "dog", "flower", "motorbike", "person"


def mean_of(paths: list[Path], weights: list[float]) -> dict[str, Any]:
    """The last state, with the mean of the weights of all, each with its share."""
    states = [torch.load(path, weights_only=True, map_location="cpu") for path in paths]
    shares = [weight / sum(weights) for weight in weights]
    mean = {
        name: sum(state["averaged"][name].float() * share for state, share in zip(states, shares, strict=True))
        for name in states[-1]["averaged"]
    }
    return {**states[-1], "averaged": mean}


def raise_everyday(state: dict[str, Any], number: float) -> None:
    """Add a number to the logits of the everyday classes."""
    classes = state["images"]["classes"]
    for name in EVERYDAY:
        state["averaged"]["classifier.bias"][classes.index(name)] += number


def config_of(state: dict[str, Any]) -> TrainingConfig:
    """The settings of the run of a state."""
    return TrainingConfig(**{**state["config"], "augmentation": Augmentation(**state["config"]["augmentation"])})


def network_of(state: dict[str, Any]) -> VisionTransformer:
    """The network of a state, with its weights."""
    network = VisionTransformer(config_of(state).model_config(len(state["images"]["classes"])))
    network.load_state_dict(state["averaged"])
    return network.eval()


def without_key_biases(network: VisionTransformer) -> VisionTransformer:
    """The network without the biases of its keys, which add one number to all scores of a query and change no weight.

    DINOv2's are large: with them, some scores are 20 times as high, and lose as much of their precision.
    """
    assert not network.config.query_key_norm and not network.config.rotary
    with torch.no_grad():
        for layer in network.layers:
            layer.attention.qkv.bias.chunk(3)[1].zero_()
    return network


def rounded(network: VisionTransformer, dtype: torch.dtype) -> VisionTransformer:
    """The network with the nearest weights of a type, in single precision."""
    return network.to(dtype).float()


def calibrated(
    state: dict[str, Any], dtype: torch.dtype, like: Model, folder: Path, epochs: str, notes: dict[str, str]
) -> Model:
    """A model with the terms of another one and its preprocessing, but for the detail of pictures, calibrated on the
    test photographs.

    Args:
        dtype: to which the weights are rounded.
        notes: more lines of its card.
    """
    network = rounded(without_key_biases(network_of(state)), dtype)
    preprocessing = replace(like.preprocessing, detail=state["config"].get("picture_detail") or None)
    patch = network.config.patch_height, network.config.patch_width
    test = read_image_folder(folder, "test", preprocessing, *patch)
    found = calibrate(classify(network, preprocessing, test), test.targets)
    assert found is not None and isinstance(network.classifier, torch.nn.Linear)
    divide(network.classifier, found.temperature)
    network = rounded(network, dtype)
    sides = config_of(state).sides(int(state["epoch"]))
    logits = {side: classify(network, preprocessing, test.at(side)) for side in sides}
    right = ", ".join(f"{accuracy_of(each, test).top1:.2%} at {side} pixels" for side, each in logits.items())
    count = state["images"]["training images"]
    card = {
        "data": f"{count:,} training images, {CIFAR10:,} of them of CIFAR-10, and {len(test):,} test images",
        "epochs": epochs,
        "top-1 accuracy": f"{right} of {len(test):,} test images",
        "calibration": found.summary,
        **notes,
        "terms": like.card["terms"],
    }
    train = read_image_folder(folder, "train", preprocessing, *patch)
    detector = detector_of(network, preprocessing, train, test)
    return Model(NAME, network, preprocessing, test.labels, card, ood_detector=detector)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("states", type=Path, nargs="+", metavar="STATE")
    parser.add_argument("--weights", type=float, nargs="+", default=None)
    parser.add_argument("--raise-everyday", type=float, default=0.0, metavar="NUMBER")
    parser.add_argument("--picture-detail", type=int, default=None, metavar="PIXELS", help="default: of the last state")
    parser.add_argument("--bfloat16", action="store_true", help="write the weights in bfloat16, not in float32")
    parser.add_argument("--epochs", default=None, metavar="TEXT", help="for the card (default: of the last state)")
    parser.add_argument("--note", nargs=2, action="append", default=[], metavar=("NAME", "TEXT"), help="of the card")
    parser.add_argument("--state", type=Path, default=None)
    options = parser.parse_args()

    state = mean_of(options.states, options.weights or [1.0] * len(options.states))
    raise_everyday(state, options.raise_everyday)
    if options.picture_detail is not None:
        state["config"]["picture_detail"] = options.picture_detail
    notes = dict(options.note)
    dtype = torch.bfloat16 if options.bfloat16 else torch.float32
    model = calibrated(state, dtype, vitviz.load(), options.folder, options.epochs or str(state["epoch"]), notes)
    save_checkpoint(options.out, replace(model, network=model.network.to(dtype)))
    print("\n".join(f"{name}: {text}" for name, text in model.card.items()))
    if options.state is not None:
        averaged = {name: tensor.bfloat16() for name, tensor in state["averaged"].items()}
        torch.save({**state, "averaged": averaged}, options.state)


if __name__ == "__main__":
    main()
