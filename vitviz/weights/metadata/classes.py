"""The names of a checkpoint's classes, and what makes probabilities of them."""

from __future__ import annotations

import re

from vitviz.errors.kinds import CheckpointError
from vitviz.weights.metadata.labels import dataset_name, label_names, synset_names
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars


def read_labels(sidecars: Sidecars, classes: int) -> tuple[tuple[str, ...], str, bool]:
    """The names of the classes, a sentence that says where they come from, and whether they are assumed.

    WordNet's numbers of synsets, such as ``n01440764``, become the synsets' lemmas. Without names, the classes are
    assumed to be those of the version of ImageNet with the same number of classes; without such a version, they are
    numbered.

    Args:
        sidecars: the JSON files beside the checkpoint.
        classes: number of classes; 0 for a network without a classifier.

    Raises:
        CheckpointError: ``config.json`` names other classes than 0 to ``classes`` - 1, or a name is no text.
    """
    if classes == 0:
        return (), "no classifier", False
    stated = _stated_labels(sidecars.config, classes)
    if stated is not None:
        return (*stated, False)
    count = "1 class" if classes == 1 else f"{classes:,} classes"
    imagenet_names = label_names(classes)
    if imagenet_names is not None:
        return imagenet_names, f"{count} without names: those of {dataset_name(classes)}", True
    return tuple(f"class {index}" for index in range(classes)), f"{count} without names: numbered", False


# What transformers' pipelines apply to the logits.
PROBLEM_TYPES = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "none",
}


def read_probability(config: Settings, classes: int) -> tuple[str, str, bool]:
    """What makes probabilities of the logits, a sentence that says how that is known, and whether it is assumed.

    transformers' pipeline for images applies what ``problem_type`` names, and the sigmoid to a single output. Other
    classifiers of several classes are for one label of them. A single output may also be that of a regression.

    Args:
        config: ``config.json``.
        classes: number of classes, above 0.

    Raises:
        CheckpointError: there is no such ``problem_type``.
    """
    function = config.choice("problem_type", PROBLEM_TYPES, "single_label_classification")
    if function == "softmax" and classes == 1:
        function = "sigmoid"
    if config.get("problem_type") is not None:
        return function, f"problem_type in {config.place}", False
    if "model_type" in config:
        return function, "what transformers' pipeline applies", False
    if classes == 1:
        return function, "a single output; pass probability='none' where it is that of a regression", True
    return function, "one label of several classes", False


def _stated_labels(config: Settings, classes: int) -> tuple[tuple[str, ...], str] | None:
    """The names in ``config.json`` and their place in it; None if it has none."""
    timm = config.inner_or_empty("pretrained_cfg")
    for section, name in ((config, "label_names"), (timm, "label_names"), (config, "labels"), (config, "id2label")):
        names = section.texts(name)
        # Names that transformers writes for unnamed classes.
        if not all(re.fullmatch(r"LABEL_\d+", text) for text in names.values()):
            break
    else:
        return None
    # Only timm's dictionaries may omit classes.
    complete = name == "id2label" or isinstance(section[name], list)
    numbers = set(range(classes))
    wrong = sorted(names.keys() ^ numbers if complete else names.keys() - numbers)
    if wrong:
        problem = f"{wrong[0]:,} is {'surplus' if wrong[0] in names else 'missing'}"
        expected = f"expected those of the classes 0 to {classes - 1:,}"
        raise CheckpointError(f"{section.place}: {name} has {len(names):,} names, {problem}; {expected}")
    descriptions = config.get("label_descriptions", timm.get("label_descriptions", {}))
    if not isinstance(descriptions, dict) or not all(isinstance(text, str) for text in descriptions.values()):
        raise CheckpointError(f"{section.place}: label_descriptions: expected a text for every name")
    texts = [names.get(index, f"class {index}") for index in range(classes)]
    synsets = synset_names() if all(re.fullmatch(r"n\d{8}", text) for text in texts) else {}
    readable = tuple(descriptions.get(text, synsets.get(text, text)) for text in texts)
    return readable, f"{name} in {section.place}"
