"""The effect of pixels on a score: integrated gradients and occlusion, by Captum (extra ``captum``).

Sundararajan, Taly & Yan 2017, "Axiomatic Attribution for Deep Networks", equation 1; Zeiler & Fergus 2014, "Visualizing
and Understanding Convolutional Networks", section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from einops import reduce

from vitviz.attention.token_map import TokenMap
from vitviz.attribution.inputs import AttributionInput
from vitviz.errors.arguments import boolean, integer
from vitviz.errors.extras import optional
from vitviz.errors.kinds import MethodError
from vitviz.models.autograd import NO_GRADIENTS, arriving_gradients
from vitviz.progress import Progress

CAPTUM = "captum"
# Images per forward pass.
BATCH_SIZE = 16
# What captions say of values below zero.
SIGNED, POSITIVE = "negative values lower the score", "negative values are left out"


def integrated_gradients(
    inputs: AttributionInput,
    steps: int = 32,
    signed: bool = False,
    *,
    report: Callable[[Progress], None] | None = None,
) -> TokenMap:
    """The contribution of each patch to the score, on the straight path from the mean training colour to the image.

    This is the gradient with respect to the pixels, integrated along the path, times the difference of its ends, and
    summed over the pixels of a patch. With their signs, the patches sum to the difference between the scores of the two
    ends.

    Args:
        inputs: image, network and target.
        steps: number of steps of the integral (Gauss-Legendre), 1 or more.
        signed: whether to keep negative values, the contributions that speak against the target; otherwise they are
            set to zero.
        report: receives the number of finished steps after each batch; an exception from it ends the computation.

    Returns:
        Values from 0 up, unbounded: the contributions that speak for the target. If ``signed``, of both signs.

    Raises:
        MethodError: the number of steps is not positive, ``signed`` is no boolean, or no gradient arrives at the
            pixels.
        ConfigError: Captum is not installed.
    """
    inputs = AttributionInput.checked(inputs)
    steps, signed = integer("steps", steps, 1, MethodError), boolean("signed", signed)
    with optional(), torch.inference_mode(False), arriving_gradients(inputs.network):
        from captum.attr import IntegratedGradients

        pixels = inputs.pixels.detach().clone()
        method = IntegratedGradients(_scores(inputs, report, steps))
        attributions = method.attribute(pixels, n_steps=steps, internal_batch_size=BATCH_SIZE)
        score = _scores(inputs)
        # They sum to the difference of the scores, so all are zero only if that is.
        if not attributions.any() and not torch.equal(score(pixels), score(torch.zeros_like(pixels))):
            raise MethodError(NO_GRADIENTS)
    values = reduce(attributions[0], "channel (row height) (column width) -> row column", "sum", **_patch(inputs))
    return _map(values, "integrated gradient", f"Integrated gradients for {inputs.target.name}: {steps} steps", signed)


def occlusion(
    inputs: AttributionInput, signed: bool = False, *, report: Callable[[Progress], None] | None = None
) -> TokenMap:
    """The fall of the score when the mean training colour replaces each patch.

    Args:
        inputs: image, network and target.
        signed: whether to keep negative values, those of patches without which the score rises; otherwise they are set
            to zero.
        report: receives the number of finished images after each batch: the whole one, and one without each patch. An
            exception from it ends the computation.

    Returns:
        Values from 0 up, unbounded; 0 if the score does not fall. If ``signed``, of both signs.

    Raises:
        MethodError: ``signed`` is no boolean.
        ConfigError: Captum is not installed.
    """
    patch, signed = _patch(AttributionInput.checked(inputs)), boolean("signed", signed)
    window = (inputs.pixels.shape[1], patch["height"], patch["width"])
    with optional(), torch.inference_mode():
        from captum.attr import Occlusion

        layout = inputs.network.config.layout(*inputs.pixels.shape[-2:])
        method = Occlusion(_scores(inputs, report, layout.patch_count + 1))
        attributions = method.attribute(inputs.pixels, window, strides=window, perturbations_per_eval=BATCH_SIZE)
    # All pixels and channels of a patch share one value.
    values = reduce(attributions[0], "channel (row height) (column width) -> row column", "mean", **patch)
    return _map(values, "fall of the score", f"Occlusion for {inputs.target.name}: one patch at a time", signed)


def _scores(
    inputs: AttributionInput, report: Callable[[Progress], None] | None = None, total: int = 0
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from the pixels of several images to their scores, which reports how many of a total it has seen."""
    target, done = inputs.target, 0

    def scores(pixels: torch.Tensor) -> torch.Tensor:
        nonlocal done
        result = target.scores(inputs.network.output(pixels, target.reads))
        done += len(pixels)
        if report is not None:
            report(Progress(done, total))
        return result

    return scores


def _patch(inputs: AttributionInput) -> dict[str, int]:
    config = inputs.network.config
    return {"height": config.patch_height, "width": config.patch_width}


def _map(values: torch.Tensor, quantity: str, description: str, signed: bool) -> TokenMap:
    values, text = values.detach().float(), f"{description}; {SIGNED if signed else POSITIVE}"
    ends, raised = (-math.inf if signed else 0.0, math.inf), bool((values > 0).any())
    return TokenMap(values if signed else values.relu(), {}, quantity, text, ends, signed, raised)
