"""Where in the pictures each number of a network's input comes from, measured by ramps through the processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils._pytree import tree_flatten, tree_unflatten

from vitviz.errors.kinds import ConfigError
from vitviz.language.prompts import Prompt

# The most ramps along a side, and the fewest pixels of each: a ramp has 256 levels.
MAX_RAMPS, MIN_RAMP_PX = 8, 96
# The most numbers of an input whose places are measured; of more, every third, fifth or seventh, and so on.
MAX_NUMBERS = 2**19
# The least change of an input between a black and a white picture.
MIN_CHANGE = 1e-3
# The most by which grey may lie off the middle of black and white, relative to their difference.
NONLINEAR = 0.02


@dataclass(frozen=True, eq=False)
class PictureInputs:
    """The inputs of a network that may be of a picture, as one row of numbers.

    Args:
        structure, leaves: of all inputs, by :mod:`torch.utils._pytree`.
        places: of the leaves with floating-point numbers.
    """

    structure: Any
    leaves: tuple[Any, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, prompt: Prompt) -> PictureInputs:
        """The inputs of a prompt."""
        leaves, structure = tree_flatten(prompt.inputs())
        numbers = (place for place, leaf in enumerate(leaves) if torch.is_tensor(leaf) and leaf.is_floating_point())
        return cls(structure, tuple(leaves), tuple(numbers))

    @property
    def sample(self) -> slice:
        """The numbers whose places are measured: by an odd step, so that they are of all columns of a patch."""
        size = len(self.flat)
        return slice(None, None, 2 * (size // (2 * MAX_NUMBERS) + (size > MAX_NUMBERS)) + 1)

    @property
    def flat(self) -> torch.Tensor:
        """``"number"``, of all places."""
        return self.read(self.leaves)

    def read(self, leaves: Sequence[Any]) -> torch.Tensor:
        return torch.cat([leaves[place].flatten() for place in self.places])

    def inputs(self, flat: torch.Tensor) -> dict[str, Any]:
        """All inputs, with other numbers."""
        leaves, parts = list(self.leaves), flat.split([self.leaves[place].numel() for place in self.places])
        for place, part in zip(self.places, parts, strict=True):
            leaves[place] = part.view(leaves[place].shape)
        return dict(tree_unflatten(leaves, self.structure))


def measure_coordinates(
    prompt: Prompt, inputs: PictureInputs, picture: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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
        return inputs.read(tree_flatten(prompt.inputs(pictures))[0])[inputs.sample].float()

    black = read(np.zeros((1, 1)))
    reach = read(np.full((1, 1), 255.0)).sub_(black)
    is_painted = reach.abs() > MIN_CHANGE
    if not bool(is_painted.any()):
        raise ConfigError("its inputs are the same for black and for white: it is shown no picture")
    reach[~is_painted] = 1
    # In place, since an input may have millions of numbers.
    grey = read(np.full((1, 1), 128.0)).sub_(black).div_(reach).sub_(128 / 255).abs_()
    if bool((grey > NONLINEAR)[is_painted].any()):
        raise ConfigError("its processor changes colours by what the picture shows: no ramp tells places")

    def axis(length: int, shape: tuple[int, int]) -> torch.Tensor:
        total = torch.zeros_like(black)
        step = max(MIN_RAMP_PX, -(-length // MAX_RAMPS))
        centres = (np.arange(length) + 0.5).reshape(shape)
        for start in range(0, length, step):
            size = min(step, length - start)
            total += read(255 * np.clip((centres - start) / size, 0, 1)).sub_(black).div_(reach).mul_(size)
        return total

    return axis(width, (1, -1)), axis(height, (-1, 1)), is_painted
