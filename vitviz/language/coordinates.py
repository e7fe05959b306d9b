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

# The most ramps along a side, and the most pixels of each where these are enough: a ramp has 256 levels.
MAX_RAMPS, RAMP_PX = 8, 96
# Of more numbers of an input than twice this, the places of every third, fifth or seventh are measured, and so on.
MAX_NUMBERS = 2**18
# The least change of an input between a black and a white picture.
MIN_CHANGE = 1e-3
# The most by which grey may lie off the middle of black and white, relative to their largest difference.
NONLINEAR = 0.02


def numbers_of(inputs: Mapping[str, Any]) -> torch.Tensor:
    """The floating-point numbers of a network's inputs, which may be of a picture: ``"number"``."""
    return torch.cat([leaf.flatten() for leaf in tree_leaves(dict(inputs)) if _has_numbers(leaf)])


def with_numbers(inputs: Mapping[str, Any], numbers: torch.Tensor) -> dict[str, Any]:
    """The inputs with other numbers in place of those of :func:`numbers_of`."""
    parts = iter(numbers.split([leaf.numel() for leaf in tree_leaves(dict(inputs)) if _has_numbers(leaf)]))
    return dict(tree_map_only(_has_numbers, lambda leaf: next(parts).view(leaf.shape), dict(inputs)))


def _has_numbers(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def sampled(numbers: torch.Tensor) -> torch.Tensor:
    """The numbers whose places are measured: by an odd step, so that they are of all columns of a patch."""
    return numbers[:: len(numbers) // MAX_NUMBERS // 2 * 2 + 1]


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
        pictures, values = list(prompt.pictures), np.broadcast_to(levels, (height, width)).round().astype(np.uint8)
        pictures[picture] = Image.fromarray(values).convert("RGB")
        # A part of a tensor would keep all of it.
        return sampled(numbers_of(prompt.inputs(pictures))).double().contiguous()

    black, grey, white = (read(np.full((1, 1), level)) for level in (0.0, 128.0, 255.0))
    reach = white - black
    is_painted = reach.abs() > MIN_CHANGE
    if not bool(is_painted.any()):
        raise ConfigError("its inputs are the same for black and for white: it is shown no picture")
    if float((grey - black - reach * (128 / 255)).abs().max()) > NONLINEAR * float(reach.abs().max()):
        raise ConfigError("its processor changes colours by what the picture shows: no ramp tells places")
    # Of little that is painted, levels are coarse.
    reach = reach.where(is_painted, 1)

    def axis(length: int, shape: tuple[int, int]) -> torch.Tensor:
        count, centres = min(MAX_RAMPS, -(-length // RAMP_PX)), (np.arange(length) + 0.5).reshape(shape)
        ramps = (read(255 * np.clip(centres * count / length - number, 0, 1)) for number in range(count))
        return torch.stack([(ramp - black) / reach * length / count for ramp in ramps]).sum(0)

    return axis(width, (1, -1)), axis(height, (-1, 1)), is_painted
