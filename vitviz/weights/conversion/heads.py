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


def find_head(checkpoint: MatchedCheckpoint, ancestors: Sequence[str]) -> None:
    """Take a classifier that is not written as its family writes it, or leave it out and say why.

    One linear map in a ``Sequential`` beside what has no weights, such as ``Sequential(Dropout(), Linear())``, is a
    classifier. Several layers are not: what lies between them is not in the file.

    Args:
        checkpoint: as its keys were matched; its keys and what is ignored of them are added to.
        ancestors: the encoder's prefix and all shorter ones.
    """
    shapes = {
        key: tensor.shape
        for key, tensor in checkpoint.file.groups[checkpoint.group].items()
        if key not in checkpoint.ignored
    }
    for ancestor in ancestors:
        for name in NAMES:
            place = ancestor + name + "."
            keys = [key for key in shapes if key.startswith(place)]
            if not keys or all(checkpoint.family.match(key[len(ancestor) :]) for key in keys):
                continue
            if any(_is_accounted_for(checkpoint, key, ancestors) for key in keys):
                continue
            if checkpoint.family.model_types and not _is_own(checkpoint, name):
                # What a module around an encoder of transformers reads of it is in no file.
                checkpoint.ignored.update(dict.fromkeys(keys, SURROUNDING))
                checkpoint.assume("classifier", "left out", SURROUNDING)
                return
            maps = [key for key in keys if len(shapes[key]) == 2 and key.endswith("weight")]
            linear = {maps[0], maps[0].removesuffix("weight") + "bias"} if len(maps) == 1 else set()
            if linear >= set(keys) and re.fullmatch(r"(\w+\.){0,2}weight", maps[0].removeprefix(place)):
                for key in keys:
                    checkpoint.keys[None, f"classifier.{key.rpartition('.')[2]}"] = key
                checkpoint.surrounded = not _is_own(checkpoint, name)
                taken = f"the one linear map under this name, as if it read what is pooled; ignore=['{place}*'] if not"
                checkpoint.assume("classifier", maps[0], taken)
            else:
                checkpoint.ignored.update(dict.fromkeys(keys, SEVERAL_LAYERS))
                checkpoint.assume("classifier", "left out", SEVERAL_LAYERS)
            return


def question_pooling(checkpoint: MatchedCheckpoint, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts, with the pooling left open where nothing in the files tells what a classifier reads.

    Raises:
        CheckpointError: a pooler stands beside a classifier, or the family's class pools otherwise than the user says.
    """
    configured, pooling = bool(checkpoint.whole_config or checkpoint.open_clip), facts.get("pooling")
    if not checkpoint.has("classifier.weight") or not isinstance(pooling, str):
        return dict(facts)
    if checkpoint.surrounded:
        return {**facts, "pooling": Open(usual=pooling)}
    if configured or not checkpoint.family.model_types:
        return dict(facts)
    if checkpoint.has("representation.weight"):
        pooler = checkpoint.keys[None, "representation.weight"].rpartition(".")[0].rpartition(".")[0]
        raise CheckpointError(
            f"{checkpoint.name}: a pooler beside a classifier, and no configuration that says which reads which; "
            f"ignore=['{pooler}.*'] has the classifier read the last layer itself"
        )
    if facts.get("final_norm") == "none" and checkpoint.overrides.get("pooling", pooling) != pooling:
        raise CheckpointError(
            f"{checkpoint.name}: pooling = {checkpoint.overrides['pooling']!r}: a classifier of "
            f"{checkpoint.family.title} reads {pooling!r}; ignore=['*classifier.*'] leaves out one that reads "
            "something else"
        )
    return {**facts, "pooling": Open(usual=pooling)}


def _is_own(checkpoint: MatchedCheckpoint, name: str) -> bool:
    """Whether a family's own classifier stands under this name."""
    return any(spelling.split(".")[0] == name for spelling in checkpoint.family.spellings("classifier.weight"))


def _is_accounted_for(checkpoint: MatchedCheckpoint, key: str, ancestors: Sequence[str]) -> bool:
    """Whether the family itself knows a key: as a part of the network or as something that it leaves out."""
    for ancestor in ancestors:
        if key.startswith(ancestor):
            name = key[len(ancestor) :]
            patterns = {**checkpoint.family.ignored, **checkpoint.family.outside}
            if checkpoint.family.match(name) or any(name.startswith(pattern.rstrip("*")) for pattern in patterns):
                return True
    return False
