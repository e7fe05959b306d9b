"""The result of a probe: numbers with named axes, a sentence, and a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

AXES: Mapping[str, str] = {
    "step": "before the first layer and after each one: one more than there are layers",
    "layer": "encoder layers, nearest to the image first",
    "head": "heads of a layer",
    "other head": "heads of the same layer, each beside the first axis's",
    "token": "prefix tokens, then patches row by row, as TokenLayout orders them",
    "prefix": "prefix tokens",
    "class": "classes of the model",
    "feature": "features of a token",
    "component": "principal components, the one with the largest variance first",
    "channel": "red, green, blue",
    "row": "from top to bottom",
    "column": "from left to right",
    "other row": "from top to bottom, of the second position",
    "other column": "from left to right, of the second position",
}
"""The axes that a measurement may have, with descriptions."""


@dataclass(frozen=True, eq=False)
class Measurement:
    """Numbers with named axes.

    Args:
        values: on the CPU; NaN for missing numbers.
        axes: a name in :data:`AXES` for each dimension, all different.
        quantity: what a value is, such as ``"norm"``.
        names: names of all positions along an axis, such as the labels of classes.
        indexes: axis that the values, int64, index, such as ``"class"``; None if they are a quantity.
    """

    values: torch.Tensor = field(repr=False)
    axes: tuple[str, ...]
    quantity: str
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    indexes: str | None = None


@dataclass(frozen=True, eq=False)
class Findings:
    """The result of a probe for one image, or for a model.

    Args:
        probe: name of the probe in :data:`vitviz.evaluation.probes.PROBES`.
        summary: the result in one sentence.
        measurements: numbers by name, for pictures, files and pages.
        heading: headings of the table's columns.
        rows: rows of the table, each as long as the heading.
    """

    probe: str
    summary: str
    measurements: Mapping[str, Measurement]
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def arrays(self) -> dict[str, np.ndarray]:
        """The measurements as NumPy arrays, by ``probe.measurement``."""
        return {f"{self.probe}.{name}": measurement.values.numpy() for name, measurement in self.measurements.items()}


def step_name(step: int) -> str:
    """The name of a step in a table: ``"input"`` before the first layer, then ``"layer 0"`` and so on."""
    return "input" if step == 0 else f"layer {step - 1}"
