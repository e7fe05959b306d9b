"""The names of a checkpoint's classes, and what makes probabilities of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import choices
from vitviz.weights.metadata.labels import ORDERS, label_names, synset_names

NUMBERED = "numbered"


def read_labels(
    config: Mapping[str, Any],
    classes: int,
    in_file: Mapping[str, Sequence[str]] | None = None,
    stated: Sequence[str] | None = None,
) -> tuple[tuple[str, ...], str, bool]:
    """The names of the classes, a sentence that says where they come from, and whether they are assumed.

    WordNet's numbers of synsets, such as ``n01440764``, become the synsets' lemmas. Without names, the classes are
    assumed to be those of the version of ImageNet with the same number of classes; without such a version, they are
    numbered. They are also numbered if the checkpoint's own file has names that do not fit, or that contradict each
    other.

    Args:
        config: ``config.json`` of timm or transformers; empty without such a file.
        classes: number of classes; 0 for a network without a classifier.
        in_file: names in the checkpoint's own file, by the path of their entry; none where an entry does not number
            them from 0 on.
        stated: by the user; they count alone.

    Raises:
        CheckpointError: ``config.json`` or the user names other classes than 0 to ``classes`` - 1, or a name is no
            text.
    """
    count = "1 class" if classes == 1 else f"{classes:,} classes"
    if stated is not None:
        if len(stated) != classes:
            raise CheckpointError(f"labels: {len(stated):,} names; expected one for each of the model's {count}")
        return tuple(stated), "stated by the user", False
    if classes == 0:
        return (), "no classifier", False
    names, problems = _stated_labels(config, classes), []
    for path, each in (in_file or {}).items():
        source = f"{path} of the file"
        if each and _are_placeholders(each):
            continue
        if len(each) != classes:
            found = f"has {len(each):,} names" if each else "does not name its classes from 0 on"
            problems.append(f"{source} {found}")
        names[source] = _readable(each)
    if not problems and len(set(names.values())) > 1:
        problems = [f"{' and '.join(names)} differ"]
    numbered = tuple(f"class {index}" for index in range(classes))
    if problems:
        return numbered, f"{NUMBERED}: {', and '.join(problems)}, where the classifier has {count}", True
    for source, labels in names.items():
        return labels, source, False
    if classes in ORDERS:
        return label_names(classes), f"{count} without names: those of {ORDERS[classes][0]}", True
    return numbered, f"{count} without names: numbered", False


def assumed_names(source: str) -> str:
    """What is assumed of the classes, in a few words, by the source that :func:`read_labels` returns."""
    return f"classes {source}" if source.startswith(f"{NUMBERED}: ") else "the names of its classes"


# What transformers' pipelines apply to the logits.
PROBLEM_TYPES = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "none",
}


def read_probability(config: Mapping[str, Any], classes: int) -> tuple[str, str, bool]:
    """What makes probabilities of the logits, a sentence that says how that is known, and whether it is assumed.

    transformers' pipeline for images applies what ``problem_type`` names, and the sigmoid to a single output. Other
    classifiers of several classes are for one label of them. A single output may also be that of a regression.

    Args:
        config: ``config.json``.
        classes: number of classes, above 0.

    Raises:
        CheckpointError: there is no such ``problem_type``.
    """
    stated = config.get("problem_type")
    if stated is not None and stated not in PROBLEM_TYPES:
        raise CheckpointError(f"config.json: problem_type = {stated!r}: expected {choices(PROBLEM_TYPES)}")
    function = PROBLEM_TYPES[stated or "single_label_classification"]
    if function == "softmax" and classes == 1:
        function = "sigmoid"
    if stated is not None:
        return function, "problem_type in config.json", False
    if "model_type" in config:
        return function, "what transformers' pipeline applies", False
    if classes == 1:
        return function, "a single output; pass probability='none' where it is that of a regression", True
    return function, "one label of several classes", False


def _stated_labels(config: Mapping[str, Any], classes: int) -> dict[str, tuple[str, ...]]:
    """The names in ``config.json``, by their place in it; none without.

    Raises:
        CheckpointError: they are not those of all classes, or one is no text.
    """
    timm = config.get("pretrained_cfg") or {}
    for section, name in ((config, "label_names"), (timm, "label_names"), (config, "labels"), (config, "id2label")):
        stated = section.get(name) or {}
        names = dict(enumerate(stated)) if isinstance(stated, list | tuple) else dict(stated)
        if not _are_placeholders(names.values()):
            break
    else:
        return {}
    texts = {int(number): text for number, text in names.items() if str(number).isdecimal()}
    # Only timm's dictionaries may omit classes.
    is_complete = texts.keys() == set(range(classes)) or (name == "label_names" and isinstance(stated, Mapping))
    if not is_complete or len(texts) != len(names) or not texts.keys() <= set(range(classes)):
        expected = f"expected those of the classes 0 to {classes - 1:,}"
        raise CheckpointError(f"config.json: {name} has {len(names):,} names; {expected}")
    full = [texts.get(index, f"class {index}") for index in range(classes)]
    if not all(isinstance(each, str) for each in full):
        raise CheckpointError(f"config.json: {name}: expected a text for every class")
    return {f"{name} in config.json": _readable(full)}


def _are_placeholders(names: Collection[Any]) -> bool:
    """Whether there is no name but those that transformers writes for unnamed classes."""
    return all(re.fullmatch(r"LABEL_\d+", str(name)) for name in names)


def _readable(names: Sequence[str]) -> tuple[str, ...]:
    """The names, with the lemmas of ImageNet's synsets if all are numbers of these."""
    synsets = synset_names() if all(re.fullmatch(r"n\d{8}", name) for name in names) else {}
    return tuple(synsets.get(name, name) for name in names)
