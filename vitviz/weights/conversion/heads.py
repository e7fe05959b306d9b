"""Classifiers that people put behind a Vision Transformer in place of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.weights.conversion.canonical import MatchedCheckpoint, Open

SEVERAL_LAYERS = "a classifier of several layers: what lies between them is not in the file"
SURROUNDING = "a classifier of the module around the encoder: what it reads of it is not in the file"
# Names of a classifier's module. What stands under one of them comes after the encoder.
NAMES = (
    *("head", "heads", "classifier", "fc", "mlp_head", "cls_head", "class_head", "classification_head"),
    *("linear_head", "linear_classifier"),
)


def find_head(found: MatchedCheckpoint, ancestors: Sequence[str]) -> None:
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
            if found.family.model_types and not _is_own(found, name):
                # What a module around an encoder of transformers reads of it is in no file.
                found.ignored.update(dict.fromkeys(keys, SURROUNDING))
                found.assume("classifier", "left out", SURROUNDING)
                return
            maps = [key for key in keys if len(shapes[key]) == 2 and key.endswith("weight")]
            linear = {maps[0], maps[0].removesuffix("weight") + "bias"} if len(maps) == 1 else set()
            if linear >= set(keys) and re.fullmatch(r"(\w+\.){0,2}weight", maps[0].removeprefix(place)):
                for key in keys:
                    found.keys[None, f"classifier.{key.rpartition('.')[2]}"] = key
                found.surrounded = not _is_own(found, name)
                taken = f"the one linear map under this name, as if it read what is pooled; ignore=['{place}*'] if not"
                found.assume("classifier", maps[0], taken)
            else:
                found.ignored.update(dict.fromkeys(keys, SEVERAL_LAYERS))
                found.assume("classifier", "left out", SEVERAL_LAYERS)
            return


def question_pooling(found: MatchedCheckpoint, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts, with the pooling left open where nothing in the files tells what a classifier reads.

    Raises:
        CheckpointError: a pooler stands beside a classifier, or the family's class pools otherwise than the user says.
    """
    configured, pooling = bool(found.whole_config or found.open_clip), facts.get("pooling")
    if not found.has("classifier.weight") or not isinstance(pooling, str):
        return dict(facts)
    if found.surrounded:
        return {**facts, "pooling": Open(usual=pooling)}
    if configured or not found.family.model_types:
        return dict(facts)
    if found.has("representation.weight"):
        pooler = found.keys[None, "representation.weight"].rpartition(".")[0].rpartition(".")[0]
        raise CheckpointError(
            f"{found.name}: a pooler beside a classifier, and no configuration that says which reads which; "
            f"ignore=['{pooler}.*'] has the classifier read the last layer itself"
        )
    if facts.get("final_norm") == "none" and found.overrides.get("pooling", pooling) != pooling:
        raise CheckpointError(
            f"{found.name}: pooling = {found.overrides['pooling']!r}: a classifier of {found.family.title} reads "
            f"{pooling!r}; ignore=['*classifier.*'] leaves out one that reads something else"
        )
    return {**facts, "pooling": Open(usual=pooling)}


def _is_own(found: MatchedCheckpoint, name: str) -> bool:
    """Whether a family's own classifier stands under this name."""
    return any(spelling.split(".")[0] == name for spelling in found.family.spellings("classifier.weight"))


def _is_accounted_for(found: MatchedCheckpoint, key: str, ancestors: Sequence[str]) -> bool:
    """Whether the family itself knows a key: as a part of the network or as something that it leaves out."""
    for ancestor in ancestors:
        if key.startswith(ancestor):
            name = key[len(ancestor) :]
            patterns = {**found.family.ignored, **found.family.outside}
            if found.family.match(name) or any(name.startswith(pattern.rstrip("*")) for pattern in patterns):
                return True
    return False
