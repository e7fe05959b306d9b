"""Classifiers that users put behind a Vision Transformer in place of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    file does not tell what lies between them. Nor does it tell what a module around an encoder of transformers reads.

    Args:
        checkpoint: whose matched and ignored keys are extended.
        surplus: keys that its family does not have.
        ancestors: the encoder's prefix and all shorter ones.
    """
    names = {f"{ancestor}{name}.": name for ancestor in ancestors for name in NAMES}
    heads = {place: [key for key in checkpoint.tensors if key.startswith(place)] for place in names}
    place = next((each for each, keys in heads.items() if keys and set(keys) <= set(surplus)), None)
    if place is None or checkpoint.has("classifier.weight"):
        return list(surplus)
    name, keys = names[place], heads[place]
    matrices = [key for key in keys if key.endswith("weight") and len(checkpoint.tensors[key].shape) == 2]
    is_linear = len(matrices) == 1 and {*keys} <= {matrices[0], matrices[0].removesuffix("weight") + "bias"}
    is_own = any(key.split(".")[0] == name for key in checkpoint.family.keys_of("classifier.weight"))
    if checkpoint.family.model_types and not is_own:
        reason = SURROUNDING
    elif is_linear and re.fullmatch(r"(\w+\.){0,2}weight", matrices[0].removeprefix(place)):
        reason = ""
    else:
        reason = SEVERAL_LAYERS
    if reason:
        checkpoint.ignored.update(dict.fromkeys(keys, reason))
        checkpoint.record("classifier", "left out", reason, assumed=True)
    else:
        checkpoint.keys.update({f"classifier.{key.rpartition('.')[2]}": key for key in keys})
        checkpoint.has_outer_classifier = not is_own
        source = f"the one linear map under this name, as if it read what is pooled; ignore=['{place}*'] if not"
        checkpoint.record("classifier", matrices[0], source, assumed=True)
    return [key for key in surplus if key not in keys]


def facts_with_pooling(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    """The facts of a checkpoint's family, with an open pooling if no file tells what the classifier reads.

    Raises:
        CheckpointError: there are a pooler and a classifier, and no configuration.
    """
    facts, is_bare = checkpoint.family.facts(checkpoint), bool(checkpoint.family.model_types) and not checkpoint.config
    is_open = checkpoint.has("classifier.weight") and (is_bare or checkpoint.has_outer_classifier)
    if is_open and is_bare and checkpoint.has("representation.0.weight"):
        pooler = checkpoint.keys["representation.0.weight"].rpartition(".")[0].rpartition(".")[0]
        raise CheckpointError(
            f"{checkpoint.name}: a pooler beside a classifier, and no configuration that says which reads which; "
            f"ignore=['{pooler}.*'] has the classifier read the last layer itself"
        )
    if is_open and isinstance(facts["pooling"], str):
        facts["pooling"] = OpenFact(usual=facts["pooling"])
    return facts
