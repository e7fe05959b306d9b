"""Classifiers that users put behind a Vision Transformer in place of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.weights.conversion.canonical import MatchedCheckpoint, OpenFact

SEVERAL_LAYERS = "a classifier of several layers: what lies between them is not in the file"
SURROUNDING = "a classifier of the module around the encoder: what it reads of it is not in the file"
# Module names of classifiers, which come after the encoder.
NAMES = (
    *("head", "heads", "classifier", "fc", "mlp_head", "cls_head", "class_head", "classification_head"),
    *("linear_head", "linear_classifier"),
)


def find_head(checkpoint: MatchedCheckpoint, surplus: Sequence[str], ancestors: Sequence[str]) -> list[str]:
    """Match a classifier that does not have the keys of its family, or ignore it with a reason; returns the other keys.

    A single linear map, as in ``Sequential(Dropout(), Linear())``, is a classifier. Several layers are not, since the
    file does not tell what lies between them.

    Args:
        checkpoint: whose matched and ignored keys are extended.
        surplus: keys that its family does not have.
        ancestors: the encoder's prefix and all shorter ones.
    """
    tensors = checkpoint.file.groups[checkpoint.group]
    for ancestor in ancestors:
        for name in NAMES:
            place = ancestor + name + "."
            keys = [key for key in tensors if key.startswith(place)]
            if not keys or not set(keys) <= set(surplus) or checkpoint.has("classifier.weight"):
                continue
            rest = [key for key in surplus if key not in keys]
            if checkpoint.family.model_types and not _is_family_head(checkpoint, name):
                # No file tells what a module around an encoder of transformers reads from it.
                checkpoint.ignored.update(dict.fromkeys(keys, SURROUNDING))
                checkpoint.record("classifier", "left out", SURROUNDING, assumed=True)
                return rest
            matrices = [key for key in keys if len(tensors[key].shape) == 2 and key.endswith("weight")]
            linear_keys = {matrices[0], matrices[0].removesuffix("weight") + "bias"} if len(matrices) == 1 else set()
            if linear_keys >= set(keys) and re.fullmatch(r"(\w+\.){0,2}weight", matrices[0].removeprefix(place)):
                for key in keys:
                    checkpoint.keys[None, f"classifier.{key.rpartition('.')[2]}"] = key
                checkpoint.has_outer_classifier = not _is_family_head(checkpoint, name)
                source = f"the one linear map under this name, as if it read what is pooled; ignore=['{place}*'] if not"
                checkpoint.record("classifier", matrices[0], source, assumed=True)
            else:
                checkpoint.ignored.update(dict.fromkeys(keys, SEVERAL_LAYERS))
                checkpoint.record("classifier", "left out", SEVERAL_LAYERS, assumed=True)
            return rest
    return list(surplus)


def leave_pooling_open(checkpoint: MatchedCheckpoint, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts, with an open pooling if no file tells what the classifier reads.

    Raises:
        CheckpointError: there are a pooler and a classifier, and no configuration.
    """
    pooling, is_bare = facts.get("pooling"), bool(checkpoint.family.model_types) and not checkpoint.config
    if not checkpoint.has("classifier.weight") or not isinstance(pooling, str):
        return dict(facts)
    if is_bare and checkpoint.has("representation.weight"):
        pooler = checkpoint.keys[None, "representation.weight"].rpartition(".")[0].rpartition(".")[0]
        raise CheckpointError(
            f"{checkpoint.name}: a pooler beside a classifier, and no configuration that says which reads which; "
            f"ignore=['{pooler}.*'] has the classifier read the last layer itself"
        )
    return {**facts, "pooling": OpenFact(usual=pooling)} if is_bare or checkpoint.has_outer_classifier else dict(facts)


def _is_family_head(checkpoint: MatchedCheckpoint, name: str) -> bool:
    """Whether the family's own classifier has this name."""
    return any(spelling.split(".")[0] == name for spelling in checkpoint.family.keys_of("classifier.weight"))
