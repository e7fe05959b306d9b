"""The input of class-specific methods: an image, a network and a target."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vitviz.caching import cached_property
from vitviz.errors.arguments import instance
from vitviz.errors.kinds import ImageError, MethodError
from vitviz.models.gradients import GradientTrace, trace_gradients
from vitviz.models.network import Network
from vitviz.models.targets import Target


@dataclass(frozen=True, eq=False)
class AttributionInput:
    """One image, a network and a target.

    Args:
        network: in evaluation mode, its weights frozen.
        pixels: ``"1 channel height width"``, normalised as the checkpoint was trained.
        target: the score that the maps explain.
    """

    network: Network
    pixels: torch.Tensor
    target: Target

    @classmethod
    def checked(cls, inputs: object) -> AttributionInput:
        """The input of a method.

        Raises:
            ConfigError: it is of another kind, such as a trace of attention.
            ImageError: it has several images.
        """
        checked = instance("inputs", inputs, cls, "vitviz.attribution.AttributionInput(network, pixels, target)")
        if len(checked.pixels) != 1:
            raise ImageError(f"{len(checked.pixels)} images: expected one, '1 channel height width'")
        return checked

    @cached_property
    def gradients(self) -> GradientTrace:
        """Gradients of the score with respect to every layer's attention; computed once."""
        return trace_gradients(self.network, self.pixels, self.target)

    def gradients_from(self, start_layer: int) -> GradientTrace:
        """Those of every layer, or if none arrive at the lower ones, such as frozen ones, those from a layer on.

        Raises:
            MethodError: none arrive at this layer either.
            QueryError: the model has no such layer.
        """
        try:
            return self.gradients
        except MethodError:
            if start_layer == 0:
                raise
            return trace_gradients(self.network, self.pixels, self.target, start_layer)
