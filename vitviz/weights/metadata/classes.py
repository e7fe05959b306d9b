"""What the classes of a checkpoint are called."""

from __future__ import annotations

import re

from vitviz.errors.kinds import CheckpointError
from vitviz.weights.metadata.labels import dataset_name, label_names, synset_names
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars


def read_labels(sidecars: Sidecars, classes: int) -> tuple[tuple[str, ...], str, bool]:
    """The names of the classes, a sentence that says where they come from, and whether they are assumed.

    Names that are numbers of WordNet's synsets, such as ``n01440764``, are read as the synsets' lemmas. Without names,
    as many classes as a version of ImageNet has are taken to be ImageNet's, and others are numbered.

    Args:
        sidecars: what lies beside the checkpoint.
        classes: how many the network has; 0 for one without a classifier.

    Raises:
        CheckpointError: ``config.json`` names other classes than 0 to ``classes`` - 1, or by what is no text.
    """
    if classes == 0:
        return (), "no classifier", False
    stated = _stated_labels(sidecars.config, classes)
    if stated is not None:
        return (*stated, False)
    count = "1 class" if classes == 1 else f"{classes:,} classes"
    known = label_names(classes)
    if known is not None:
        return known, f"{count} without names: those of {dataset_name(classes)}", True
    return tuple(f"class {index}" for index in range(classes)), f"{count} without names: numbered", False


def _stated_labels(whole: Settings, classes: int) -> tuple[tuple[str, ...], str] | None:
    """The names in ``config.json``, and where they stand in it; None where it has none."""
    timm = whole.part("pretrained_cfg")
    for section, name in ((whole, "label_names"), (timm, "label_names"), (whole, "labels"), (whole, "id2label")):
        names = section.texts(name)
        # What transformers writes for classes that were never named.
        if not all(re.fullmatch(r"LABEL_\d+", text) for text in names.values()):
            break
    else:
        return None
    # Only a dictionary of timm's may leave classes without a name.
    complete = name == "id2label" or isinstance(section[name], list)
    numbers = set(range(classes))
    wrong = sorted(names.keys() ^ numbers if complete else names.keys() - numbers)
    if wrong:
        problem = f"{wrong[0]:,} is {'surplus' if wrong[0] in names else 'missing'}"
        expected = f"expected those of the classes 0 to {classes - 1:,}"
        raise CheckpointError(f"{section.place}: {name} has {len(names):,} names, {problem}; {expected}")
    descriptions = whole.get("label_descriptions", timm.get("label_descriptions", {}))
    if not isinstance(descriptions, dict) or not all(isinstance(text, str) for text in descriptions.values()):
        raise CheckpointError(f"{section.place}: label_descriptions: expected a text for every name")
    texts = [names.get(index, f"class {index}") for index in range(classes)]
    synsets = synset_names() if all(re.fullmatch(r"n\d{8}", text) for text in texts) else {}
    readable = tuple(descriptions.get(text, synsets.get(text, text)) for text in texts)
    return readable, f"{name} in {section.place}"
