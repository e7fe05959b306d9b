"""Classifiers that people put behind a Vision Transformer in place of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vitviz.weights.pieces import Found

# Names of a classifier's module. What stands under one of them comes after the encoder.
NAMES = (
    *("head", "heads", "classifier", "fc", "mlp_head", "cls_head", "class_head", "classification_head"),
    *("linear_head", "linear_classifier"),
)


def find_head(found: Found, ancestors: Sequence[str]) -> None:
    """Take a classifier that is not written as its family writes it, or leave it out and say why.

    One linear map in a ``Sequential`` beside what has no weights, such as ``Sequential(Dropout(), Linear())``, is a
    classifier. Several layers are not: what lies between them is not in the file.

    Args:
        found: the checkpoint; its keys and what is ignored of them are added to.
        ancestors: the encoder's prefix and all shorter ones.
    """
    shapes = {key: tensor.shape for key, tensor in found.file.groups[found.group].items() if key not in found.ignored}
    for ancestor in ancestors:
        for name in NAMES:
            place = ancestor + name + "."
            keys = [key for key in shapes if key.startswith(place)]
            if not keys or all(found.family.match(key[len(ancestor) :]) for key in keys):
                continue
            if any(_is_accounted_for(found, key, ancestors) for key in keys):
                continue
            maps = [key for key in keys if len(shapes[key]) == 2 and key.endswith("weight")]
            linear = {maps[0], maps[0].removesuffix("weight") + "bias"} if len(maps) == 1 else set()
            if linear >= set(keys) and re.fullmatch(r"(\w+\.){0,2}weight", maps[0].removeprefix(place)):
                for key in keys:
                    found.keys[None, f"classifier.{key.rpartition('.')[2]}"] = key
                found.learn("classifier", maps[0], "the one linear map under this name")
            else:
                reason = "a classifier of several layers: what lies between them is not in the file"
                found.ignored.update(dict.fromkeys(keys, reason))
            return


def _is_accounted_for(found: Found, key: str, ancestors: Sequence[str]) -> bool:
    """Whether the family itself knows a key: as a part of the network or as something that it leaves out."""
    for ancestor in ancestors:
        if key.startswith(ancestor):
            name = key[len(ancestor) :]
            patterns = {**found.family.ignored, **found.family.outside}
            if found.family.match(name) or any(name.startswith(pattern.rstrip("*")) for pattern in patterns):
                return True
    return False
