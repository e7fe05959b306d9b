"""What pixels do to a score, whatever the attention: integrated gradients and occlusion, by Captum (extra ``captum``).

Sundararajan, Taly & Yan 2017, "Axiomatic Attribution for Deep Networks", equation 1; Zeiler & Fergus 2014, "Visualizing
and Understanding Convolutional Networks", section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from einops import reduce

from vitviz.arguments import whole
from vitviz.attribution.subject import Subject
from vitviz.errors import ConfigError, MethodError
from vitviz.progress import Progress
from vitviz.token_map import TokenMap

CAPTUM = "captum"
# Images in one forward pass.
BATCH = 16


def integrated_gradients(
    subject: Subject, steps: int = 32, *, report: Callable[[Progress], None] | None = None
) -> TokenMap:
    """What every patch adds to the score on the straight way from the mean colour of the training data to the image.

    The gradient with respect to the pixels, integrated along the way and multiplied with its length; summed over the
    pixels of a patch. Before what is below zero is left out, all patches together add up to the difference between the
    two ends' scores.

    Args:
        subject: image, network and target.
        steps: of the integral (Gauss-Legendre), 1 or more.
        report: is told how many steps have their gradient, after each batch of them; an exception that it raises ends
            the computation.

    Returns:
        Values from 0 up, without a bound: what speaks for the target.

    Raises:
        MethodError: the steps are no positive number.
        ConfigError: Captum is not installed.
    """
    steps = whole("steps", steps, 1, MethodError)
    with _captum(), torch.inference_mode(False):
        from captum.attr import IntegratedGradients

        pixels = subject.pixels.detach().clone()
        explained, done = IntegratedGradients(_scores(subject)), _counter(report, steps)
        gradients = explained.gradient_func

        def counted(**batch: Any) -> Any:
            found = gradients(**batch)
            done(len(batch["inputs"][0]))
            return found

        explained.gradient_func = counted
        found = explained.attribute(pixels, n_steps=steps, internal_batch_size=BATCH)
    values = reduce(found[0], "channel (row height) (column width) -> row column", "sum", **_patch(subject))
    return _map(values, "integrated gradient", f"Integrated gradients for {subject.target.name}: {steps} steps")


def occlusion(subject: Subject, *, report: Callable[[Progress], None] | None = None) -> TokenMap:
    """How far the score falls without each patch, the mean colour of the training data in its place.

    Args:
        subject: image, network and target.
        report: is told how many images have their score, after each batch of them: the whole one, and one without each
            patch; an exception that it raises ends the computation.

    Returns:
        Values from 0 up, without a bound; 0 where the score does not fall.

    Raises:
        ConfigError: Captum is not installed.
    """
    patch = _patch(subject)
    window = (subject.pixels.shape[1], patch["height"], patch["width"])
    with _captum(), torch.inference_mode():
        from captum.attr import Occlusion

        layout = subject.network.config.layout(*subject.pixels.shape[-2:])
        scores, done = _scores(subject), _counter(report, layout.patch_count + 1)

        def counted(pixels: torch.Tensor) -> torch.Tensor:
            found = scores(pixels)
            done(len(pixels))
            return found

        found = Occlusion(counted).attribute(subject.pixels, window, strides=window, perturbations_per_eval=BATCH)
    # The same for all pixels and channels of a patch.
    values = reduce(found[0], "channel (row height) (column width) -> row column", "mean", **patch)
    return _map(values, "fall of the score", f"Occlusion for {subject.target.name}: one patch at a time")


def _scores(subject: Subject) -> Callable[[torch.Tensor], torch.Tensor]:
    """Pixels of several images to the score of each."""
    return lambda pixels: torch.stack([subject.target.score(each) for each in subject.network(pixels)])


def _counter(report: Callable[[Progress], None] | None, total: int) -> Callable[[int], None]:
    """Takes how many more are done, and reports how many are by then."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if report is not None:
            report(Progress(done, total))

    return count


def _patch(subject: Subject) -> dict[str, int]:
    config = subject.network.config
    return {"height": config.patch_height, "width": config.patch_width}


def _map(values: torch.Tensor, quantity: str, description: str) -> TokenMap:
    return TokenMap(values.detach().float().relu(), {}, quantity, description, (0.0, math.inf))


@contextmanager
def _captum() -> Iterator[None]:
    """Where Captum is missing, the error says how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != CAPTUM:
            raise
        raise ConfigError(f"this needs {CAPTUM}: pip install 'vitviz[{CAPTUM}]'") from None
