"""The function that makes probabilities of a classifier's outputs: every number that vitviz calls one is from here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch

from vitviz.attention.precision import precise
from vitviz.errors.kinds import MethodError

if TYPE_CHECKING:
    from vitviz.models.network import NetworkConfig

Probability = Literal["softmax", "sigmoid", "identity", "none"]
PROBABILITIES: dict[str, Callable[[torch.Tensor], torch.Tensor] | None] = {
    "softmax": lambda outputs: outputs.softmax(-1),
    "sigmoid": torch.sigmoid,
    "identity": lambda outputs: outputs,
    "none": None,
}
"""Functions from outputs ``"... class"`` to probabilities in [0, 1]: softmax for one label of several classes, sigmoid
for several labels or a single output, the identity for a network whose outputs are probabilities already, and none for
a regression, whose outputs are no probabilities."""
REGRESSION = "is a regression, whose outputs are no probabilities"


def why_no_probability(config: NetworkConfig) -> str | None:
    """Why a network gives no probabilities of classes, as "… has no classifier"; None if it does."""
    if not config.classes:
        return "has no classifier"
    return REGRESSION if PROBABILITIES[config.probability] is None else None


def class_probabilities(outputs: torch.Tensor, function: str) -> torch.Tensor:
    """The probability of each class, ``"... class"``, in at least single precision.

    Args:
        outputs: of the classifier, ``"... class"``.
        function: a name in :data:`PROBABILITIES`, ``config.probability`` of the network.

    Raises:
        MethodError: the outputs are those of a regression.
    """
    compute = PROBABILITIES[function]
    if compute is None:
        raise MethodError(f"this model {REGRESSION}")
    return compute(precise(outputs))
