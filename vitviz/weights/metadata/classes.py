"""The names of a checkpoint's classes, and what makes probabilities of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import choices
from vitviz.weights.metadata.class_names import names_of
from vitviz.weights.metadata.labels import ORDERS, label_names, synset_names

NUMBERED = "numbered"
# timm's names of towers for pictures whose outputs are compared with those of texts, and how many these have.
OF_PICTURES_AND_TEXTS, TEXT_FEATURES = re.compile(r"clip|pe_core"), (384, 512, 640, 768, 1024, 1152, 1280)


def read_labels(
    config: Mapping[str, Any],
    classes: int,
    in_file: Mapping[str, Sequence[str]] | None = None,
    stated: Sequence[str] | None = None,
) -> tuple[tuple[str, ...], str, bool]:
    """The names of the classes, a sentence that says where they come from, and whether they are assumed.

    WordNet's numbers of synsets, such as ``n01440764``, become the synsets' lemmas. Without names, the classes are
    assumed to be those of the version of ImageNet with the same number of classes; without such a version, they are
    numbered. They are also numbered if there are names that do not fit, or that contradict each other.

    Args:
        config: ``config.json`` of timm or transformers, of whose entries the first with names counts; empty without
            such a file.
        classes: number of classes; 0 for a network without a classifier.
        in_file: names in the checkpoint's own file, by the path of their entry; none where an entry does not number
            them from 0 on.
        stated: by the user; they count alone.

    Raises:
        CheckpointError: the user names other classes than 0 to ``classes`` - 1.
    """
    count = "1 class" if classes == 1 else f"{classes:,} classes"
    if stated is not None:
        if len(stated) != classes:
            raise CheckpointError(f"labels: {len(stated):,} names; expected one for each of the model's {count}")
        return tuple(stated), "stated by the user", False
    if classes == 0:
        return (), "no classifier", False
    timm = config.get("pretrained_cfg") or {}
    sections = (("label_names", config), ("label_names", timm), ("labels", config), ("id2label", config))
    beside = [(f"{name} in config.json", names_of(section.get(name))) for name, section in sections]
    found = [
        *[(source, names) for source, names in beside if names is not None][:1],
        *((f"{path} of the file", names) for path, names in (in_file or {}).items()),
    ]
    problems = [
        f"{source} {f'has {len(names):,} names' if names else 'does not name its classes from 0 on'}"
        for source, names in found
        if len(names) != classes
    ]
    readable = [_readable(names) for _, names in found]
    if not problems and len(set(readable)) > 1:
        problems = [f"{' and '.join(source for source, _ in found)} differ"]
    numbered = tuple(f"class {index}" for index in range(classes))
    if problems:
        return numbered, f"{NUMBERED}: {', and '.join(problems)}, where the classifier has {count}", True
    if found:
        return readable[0], found[0][0], False
    if classes in ORDERS:
        return label_names(classes), f"{count} without names: those of {ORDERS[classes][0]}", True
    return numbered, f"{count} without names: numbered", False


def gives_features(config: Mapping[str, Any], classes: int) -> bool:
    """Whether as many outputs, which timm calls classes, are the features of a published network of pictures and texts.

    Args:
        config: timm's ``config.json`` or ``pretrained_cfg``.
        classes: number of outputs.
    """
    stated = {**config, **(config.get("pretrained_cfg") or {})}
    is_unnamed = classes in TEXT_FEATURES and not stated.get("label_names")
    return is_unnamed and bool(OF_PICTURES_AND_TEXTS.search(f"{stated.get('architecture')}.{stated.get('tag')}"))


def assumed_names(source: str) -> str:
    """What is assumed of the classes, in a few words, by the source that :func:`read_labels` returns."""
    return f"classes {source}" if source.startswith(f"{NUMBERED}: ") else "the names of its classes"


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
    usual, stated = "sigmoid" if classes == 1 else "softmax", config.get("problem_type")
    functions = {
        "single_label_classification": usual,
        "multi_label_classification": "sigmoid",
        "regression": "none",
    }
    if stated is not None:
        if stated not in functions:
            raise CheckpointError(f"config.json: problem_type = {stated!r}: expected {choices(functions)}")
        return functions[stated], "problem_type in config.json", False
    if "model_type" in config:
        return usual, "what transformers' pipeline applies", False
    if classes == 1:
        return usual, "a single output; pass probability='none' where it is that of a regression", True
    return usual, "one label of several classes", False


def _readable(names: Sequence[str]) -> tuple[str, ...]:
    """The names, with the lemmas of ImageNet's synsets if all are numbers of these."""
    synsets = synset_names() if all(re.fullmatch(r"n\d{8}", name) for name in names) else {}
    return tuple(synsets.get(name, name) for name in names)
