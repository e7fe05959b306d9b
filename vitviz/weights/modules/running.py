"""How a module is called: with pictures of which size, and of how many channels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, TypeVar

import torch
from torch import nn

from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.watched.module_config import Size
from vitviz.models.watched.module_state import device_of, dtype_of
from vitviz.models.watched.outputs import Forward, first_output
from vitviz.weights.modules.calling import call_with_border, default_forward
from vitviz.weights.modules.sizes import (
    find_channels,
    find_image_size,
    find_stated_patch,
    likely_sizes,
    whole_patches,
)

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Run:
    """What a module returned for a blank picture.

    Args:
        forward: calls the module.
        pixels: of the picture, ``"1 channel height width"``, of whole patches.
        full: height and width of the module's pictures, whose sides may be no multiple of its patches.
        result: of the call.
    """

    forward: Forward
    pixels: torch.Tensor
    full: Size
    result: Any

    @property
    def size(self) -> Size:
        """Height and width of the picture."""
        return self.pixels.shape[2], self.pixels.shape[3]


def first_run(
    module: nn.Module,
    name: str,
    preprocessing: Any,
    image_size: Size | None,
    patch_size: Size | None,
    forward: Forward | None,
) -> Run:
    """The module's pass on the first picture that it takes: of the size that is stated, its own, or a likely one.

    Args:
        module, image_size, patch_size, forward: as of :func:`vitviz.load`.
        name: of the module, for messages.
        preprocessing: of its pictures, if that is known.

    Raises:
        ConfigError, ImageError: it takes none.
    """
    own = find_image_size(module)
    size = full = image_size or own
    if size and own and forward is None and (patch := patch_size or find_stated_patch(module)):
        # Of sides that are no multiple of the patch, the rest is read by none.
        size = whole_patches(size, patch)
        full = own if whole_patches(own, patch) == size else size
    sizes = likely_sizes(module) if size is None else [size]
    if image_size is None and size and type(preprocessing) is Preprocessing and (patch := find_stated_patch(module)):
        # First at the size of its pictures, which it may take without being asked to.
        sizes.insert(0, whole_patches((preprocessing.height, preprocessing.width), patch))

    def run(choice: tuple[Size, int]) -> Run:
        tried, channels = choice
        zeros = torch.zeros(1, channels, *tried, dtype=dtype_of(module), device=device_of(module))
        whole = full if full and tried == size else tried
        function = default_forward(module, name, whole) if forward is None else forward
        if whole != tried:
            function = partial(call_with_border, forward=function, whole=tried, size=whole)
        remedy = "; image_size=… states another size, forward=lambda module, pixels: … another call"
        return Run(function, zeros, whole, first_output(name, module, function, zeros, remedy))

    stated_channels = len(preprocessing.mean) if isinstance(preprocessing, Preprocessing) else None
    # The first convolution may be on tokens, and no picture's.
    channels = dict.fromkeys((find_channels(module) or stated_channels or 3, 3, 1))
    return first_that_works(run, product(sizes, channels))


def first_that_works(function: Callable[[Any], Value], choices: Iterable[Any]) -> Value:
    """The result for the first choice for which there is one.

    Raises:
        ConfigError, ImageError: of the first choice.
    """
    errors = list[ConfigError | ImageError]()
    for choice in choices:
        try:
            return function(choice)
        except (ConfigError, ImageError) as error:
            errors.append(error)
    raise errors[0]
