"""Classifiers that users put behind a Vision Transformer in place of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitviz.errors.kinds import CheckpointError
from vitviz.weights.conversion.canonical import MatchedCheckpoint, OpenFact

# Module names of classifiers, which come after the encoder.
NAMES = (
    *("head", "heads", "classifier", "fc", "mlp_head", "cls_head", "class_head", "classification_head"),
    *("linear_head", "linear_classifier"),
)


def find_head(checkpoint: MatchedCheckpoint, surplus: Sequence[str], ancestors: Sequence[str]) -> list[str]:
    """Match a classifier that does not have the keys of its family; returns the other keys.

    A single linear map, as in ``Sequential(Dropout(), Linear())``, is a classifier. Several layers are not, since the
    file does not tell what lies between them. Nor does it tell what a module around an encoder of transformers reads.

    Args:
        checkpoint: whose matched keys are extended.
        surplus: keys that its family does not have.
        ancestors: the encoder's prefix and all shorter ones.
    """
    names = {f"{ancestor}{name}.": name for ancestor in ancestors for name in NAMES}
    place = next((each for each in names if any(key.startswith(each) for key in surplus)), None)
    if place is None or checkpoint.has("classifier.weight") or checkpoint.family.model_types:
        return list(surplus)
    keys = {key: tensor for key, tensor in checkpoint.tensors.items() if key.startswith(place)}
    modules, parts = {key.rpartition(".")[0] for key in keys}, {key.rpartition(".")[2]: key for key in keys}
    is_linear = len(modules) == 1 and {"weight"} <= parts.keys() <= {"weight", "bias"}
    if not is_linear or keys[parts["weight"]].ndim != 2:
        return list(surplus)
    checkpoint.keys.update({f"classifier.{part}": key for part, key in parts.items()})
    own = checkpoint.family.keys_of("classifier.weight")
    checkpoint.has_outer_classifier = not any(key.split(".")[0] == names[place] for key in own)
    source = f"the one linear map under this name, as if it read what is pooled; ignore=['{place}*'] if not"
    checkpoint.record("classifier", parts["weight"], source, assumed=True)
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
