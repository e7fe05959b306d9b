"""The output of a module that is explained, what makes probabilities of it, and names of its classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from vitviz.errors.arguments import word
from vitviz.errors.kinds import ConfigError
from vitviz.models.probability import PROBABILITIES
from vitviz.models.watched.outputs import FIELDS, Forward, is_vector, primary_output
from vitviz.models.watched.replay import Replay
from vitviz.weights.metadata.classes import gives_features, read_labels, read_probability
from vitviz.weights.modules.unwrap import package_of

# Packages whose classifiers of several classes are for one label.
ONE_LABEL = ("timm", "torchvision")
SIGMOIDS = ("sigmoid", "sigmoid_", "special_expit")


def one_output(module: nn.Module, pixels: torch.Tensor, forward: Forward, key: int | str) -> Any:
    """One of the outputs of a module, by its number or name."""
    return forward(module, pixels)[key]


def choose_output(
    module: nn.Module, forward: Forward, result: Any, classes: int | None
) -> tuple[Forward, Any, tuple[str, ...]]:
    """The function that calls a module for one of its outputs, that output, and the assumptions about it.

    It is the first with a number for each class, or else the first that is no single number. transformers' own fields
    need no choice.

    Args:
        module: that was called.
        forward: calls the module.
        result: of the call.
        classes: number of classes; None if it is not known.
    """
    if package_of(module) == "transformers" or not isinstance(result, tuple | list | Mapping):
        return forward, result, ()
    entries: Mapping[Any, Any] = result if isinstance(result, Mapping) else dict(enumerate(result))
    entries = {key: value for key, value in entries.items() if value is not None}
    tensors = {key: value for key, value in entries.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        return forward, result, ()
    fitting = [key for key, value in tensors.items() if is_vector(value) and classes and value.shape[1] == classes]
    fitting = fitting or [key for key, value in tensors.items() if value.ndim > 1] or list(tensors)
    key = next((field for field in FIELDS if field in fitting), fitting[0])
    others = [each for each in entries if each != key]
    assumptions = [
        f"output {key!r}, one of {', '.join(map(repr, entries))}; "
        f"forward=lambda module, pixels: module(pixels)[{other!r}] takes another"
        for other in others[:1]
    ]
    return partial(one_output, forward=forward, key=key), tensors[key], tuple(assumptions)


def module_probability(
    module: nn.Module, stated: str | None, zeros_output: torch.Tensor, replay: Replay, classes: int
) -> tuple[str, str, bool]:
    """What makes probabilities of a module's output, a sentence that says how that is known, and whether it is assumed.

    Outputs that are probabilities already are noticed: none is negative and their sum is 1, for a blank picture and for
    noise, or a sigmoid returned them.

    Args:
        module: with a classifier.
        stated: by the user, a name in :data:`PROBABILITIES`; None if nothing is stated.
        zeros_output: the module's output for a blank picture.
        replay: the module's pass for noise.
        classes: number of classes, above 0.

    Raises:
        ConfigError: there is no such name.
        CheckpointError: the module's configuration has an unknown ``problem_type``.
    """
    if stated is not None:
        return word("probability", stated, PROBABILITIES, ConfigError), "stated by the user", False
    if all(_are_probabilities(output, replay.output_step.name in SIGMOIDS) for output in (zeros_output, replay.output)):
        return "identity", "the module returns probabilities", False
    # transformers' modules, those that are derived from them, and what wraps one.
    configs = (getattr(each, "config", None) for each in module.modules())
    stating = (each for each in configs if isinstance(getattr(each, "problem_type", None), str))
    config = next(stating, getattr(module, "config", None))
    values = {name: getattr(config, name, None) for name in ("problem_type", "model_type")}
    entries = {name: value for name, value in values.items() if isinstance(value, str)}
    function, source, is_assumed = read_probability(entries, classes)
    if entries or is_assumed or package_of(module) in ONE_LABEL:
        return function, source, is_assumed
    return function, "one label of several classes; pass probability='sigmoid' for several labels", True


def _are_probabilities(output: torch.Tensor, is_sigmoid: bool) -> bool:
    if not is_vector(output) or not bool((output >= 0).all()):
        return False
    tolerance = 4 * output.shape[1] ** 0.5 * torch.finfo(output.dtype).eps
    sums_to_one = output.shape[1] > 1 and bool(((output.double().sum(1) - 1).abs() <= tolerance).all())
    return sums_to_one or is_sigmoid


def find_labels(
    module: nn.Module,
    labels: Sequence[str] | None,
    output: Any,
    has_logits: bool,
    names_in_file: Mapping[str, Sequence[str]] | None,
) -> tuple[tuple[str, ...], str, bool] | None:
    """Names of the classes, their source, and whether they are assumed; no names without a classifier.

    None if the module does not state whether its outputs are classes.

    Args:
        module: that may have a classifier.
        labels: from the user.
        output: of the module for an image.
        has_logits: whether the module calls its output logits.
        names_in_file: names of classes in the file of its weights, by the path of their entry.
    """
    if labels is not None:
        return tuple(labels), "given", False
    vector, classes = primary_output(output), getattr(module, "num_classes", None)
    is_other = isinstance(output, Mapping) or classes == 0
    if not is_vector(vector) or package_of(module) == "open_clip" or (is_other and not has_logits):
        return (), "no classifier", False
    if not has_logits and classes != vector.shape[1]:
        return None
    stated = getattr(module, "pretrained_cfg", None)
    timm: Mapping[str, Any] = stated if isinstance(stated, Mapping) else {}
    if gives_features(timm, vector.shape[1]):
        return (), "features that are compared with those of texts", False
    config = {"id2label": getattr(getattr(module, "config", None), "id2label", None), "pretrained_cfg": timm}
    return read_labels(config, vector.shape[1], names_in_file)
