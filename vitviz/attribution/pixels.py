"""What pixels do to a score, whatever the attention: integrated gradients and occlusion, by Captum (extra ``captum``).

Sundararajan, Taly & Yan 2017, "Axiomatic Attribution for Deep Networks", equation 1; Zeiler & Fergus 2014, "Visualizing
and Understanding Convolutional Networks", section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from einops import reduce

from vitviz.attention.token_map import TokenMap
from vitviz.attribution.inputs import AttributionInput
from vitviz.errors.arguments import integer
from vitviz.errors.extras import extra
from vitviz.errors.kinds import MethodError
from vitviz.progress import Progress

CAPTUM = "captum"
# Images in one forward pass.
BATCH = 16


def integrated_gradients(
    inputs: AttributionInput, steps: int = 32, *, report: Callable[[Progress], None] | None = None
) -> TokenMap:
    """What every patch adds to the score on the straight way from the mean colour of the training data to the image.

    The gradient with respect to the pixels, integrated along the way and multiplied with its length; summed over the
    pixels of a patch. Before what is below zero is left out, all patches together add up to the difference between the
    two ends' scores.

    Args:
        inputs: image, network and target.
        steps: of the integral (Gauss-Legendre), 1 or more.
        report: receives how many steps have their gradient, after each batch of them; an exception that it raises ends
            the computation.

    Returns:
        Values from 0 up, without a bound: what speaks for the target.

    Raises:
        MethodError: the steps are no positive number.
        ConfigError: Captum is not installed.
    """
    steps = integer("steps", steps, 1, MethodError)
    with extra(CAPTUM, package=CAPTUM), torch.inference_mode(False):
        from captum.attr import IntegratedGradients

        pixels = inputs.pixels.detach().clone()
        explained, done = IntegratedGradients(_scores(inputs)), _counter(report, steps)
        gradients = explained.gradient_func

        def counted(**batch: Any) -> Any:
            found = gradients(**batch)
            done(len(batch["inputs"][0]))
            return found

        explained.gradient_func = counted
        found = explained.attribute(pixels, n_steps=steps, internal_batch_size=BATCH)
    values = reduce(found[0], "channel (row height) (column width) -> row column", "sum", **_patch(inputs))
    return _map(values, "integrated gradient", f"Integrated gradients for {inputs.target.name}: {steps} steps")


def occlusion(inputs: AttributionInput, *, report: Callable[[Progress], None] | None = None) -> TokenMap:
    """How far the score falls without each patch, the mean colour of the training data in its place.

    Args:
        inputs: image, network and target.
        report: receives how many images have their score, after each batch of them: the whole one, and one without each
            patch; an exception that it raises ends the computation.

    Returns:
        Values from 0 up, without a bound; 0 where the score does not fall.

    Raises:
        ConfigError: Captum is not installed.
    """
    patch = _patch(inputs)
    window = (inputs.pixels.shape[1], patch["height"], patch["width"])
    with extra(CAPTUM, package=CAPTUM), torch.inference_mode():
        from captum.attr import Occlusion

        layout = inputs.network.config.layout(*inputs.pixels.shape[-2:])
        scores, done = _scores(inputs), _counter(report, layout.patch_count + 1)

        def counted(pixels: torch.Tensor) -> torch.Tensor:
            found = scores(pixels)
            done(len(pixels))
            return found

        found = Occlusion(counted).attribute(inputs.pixels, window, strides=window, perturbations_per_eval=BATCH)
    # All pixels and channels of a patch share one value.
    values = reduce(found[0], "channel (row height) (column width) -> row column", "mean", **patch)
    return _map(values, "fall of the score", f"Occlusion for {inputs.target.name}: one patch at a time")


def _scores(inputs: AttributionInput) -> Callable[[torch.Tensor], torch.Tensor]:
    """Pixels of several images to the score of each."""
    target = inputs.target
    return lambda pixels: target.scores(inputs.network.output(pixels, target.reads))


def _counter(report: Callable[[Progress], None] | None, total: int) -> Callable[[int], None]:
    """A function that adds to the number of finished steps and reports it."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if report is not None:
            report(Progress(done, total))

    return count


def _patch(inputs: AttributionInput) -> dict[str, int]:
    config = inputs.network.config
    return {"height": config.patch_height, "width": config.patch_width}


def _map(values: torch.Tensor, quantity: str, description: str) -> TokenMap:
    return TokenMap(values.detach().float().relu(), {}, quantity, description, (0.0, math.inf))
