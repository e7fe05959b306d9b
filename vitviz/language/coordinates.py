"""Where in the pictures each number of a network's input comes from, measured by ramps through the processor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils._pytree import tree_leaves, tree_map_only

from vitviz.errors.kinds import ConfigError
from vitviz.language.prompts import Prompt

# The most ramps along a side, and the fewest pixels of each: a ramp has 256 levels.
MAX_RAMPS, MIN_RAMP_PX = 8, 96
# The most numbers of an input whose places are measured; of more, every third, fifth or seventh, and so on.
MAX_NUMBERS = 2**19
# The least change of an input between a black and a white picture.
MIN_CHANGE = 1e-3
# The most by which grey may lie off the middle of black and white, relative to their largest difference.
NONLINEAR = 0.02


def numbers_of(inputs: Mapping[str, Any]) -> torch.Tensor:
    """The floating-point numbers of a network's inputs, which may be of a picture: ``"number"``."""
    return torch.cat([leaf.flatten() for leaf in tree_leaves(dict(inputs)) if _has_numbers(leaf)])


def with_numbers(inputs: Mapping[str, Any], numbers: torch.Tensor) -> dict[str, Any]:
    """The inputs with other numbers in place of those of :func:`numbers_of`."""
    sizes = [leaf.numel() for leaf in tree_leaves(dict(inputs)) if _has_numbers(leaf)]
    parts = iter(numbers.split(sizes))
    return dict(tree_map_only(_has_numbers, lambda leaf: next(parts).view(leaf.shape), dict(inputs)))


def _has_numbers(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def sampled(numbers: torch.Tensor) -> torch.Tensor:
    """The numbers whose places are measured: by an odd step, so that they are of all columns of a patch."""
    size = len(numbers)
    return numbers[:: 2 * (size // (2 * MAX_NUMBERS) + (size > MAX_NUMBERS)) + 1]


def measure_coordinates(prompt: Prompt, picture: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where the sampled numbers of an input come from in one picture, while the other ones stay.

    Returns:
        x and y in pixels from the top left corner, and whether each number is of this picture, and not padding or of
        another one; each ``"number"``.

    Raises:
        ConfigError: the input does not show the picture, or the processor does more than to resize, cut and scale.
    """
    width, height = prompt.pictures[picture].size

    def read(levels: np.ndarray) -> torch.Tensor:
        shown = np.broadcast_to(levels, (height, width)).round().astype(np.uint8)
        painted = Image.fromarray(shown).convert("RGB")
        pictures = [painted if number == picture else each for number, each in enumerate(prompt.pictures)]
        # A part of a tensor would keep all of it.
        return sampled(numbers_of(prompt.inputs(pictures))).float().contiguous()

    black = read(np.zeros((1, 1)))
    reach = read(np.full((1, 1), 255.0)).sub_(black)
    is_painted = reach.abs() > MIN_CHANGE
    if not bool(is_painted.any()):
        raise ConfigError("its inputs are the same for black and for white: it is shown no picture")
    # In place, since an input may have millions of numbers. Of little that is painted, levels are coarse.
    grey = read(np.full((1, 1), 128.0)).sub_(black).sub_(reach, alpha=128 / 255).abs_()
    if float(grey.max()) > NONLINEAR * float(reach.abs().max()):
        raise ConfigError("its processor changes colours by what the picture shows: no ramp tells places")
    reach[~is_painted] = 1

    def axis(length: int, shape: tuple[int, int]) -> torch.Tensor:
        total = torch.zeros_like(black)
        step = max(MIN_RAMP_PX, -(-length // MAX_RAMPS))
        centres = (np.arange(length) + 0.5).reshape(shape)
        for start in range(0, length, step):
            size = min(step, length - start)
            total += read(255 * np.clip((centres - start) / size, 0, 1)).sub_(black).div_(reach).mul_(size)
        return total

    return axis(width, (1, -1)), axis(height, (-1, 1)), is_painted
