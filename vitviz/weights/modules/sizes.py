"""A module's image and patch sizes, and the names of its other tokens, read from its attributes.

These values are not trusted: watching measures which token is which patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from torch import nn

from vitviz.models.watched.grids import grid_of
from vitviz.models.watched.module_config import Size
from vitviz.weights.metadata.sides import are_sides, both_sides
from vitviz.weights.modules.calling import clip_tubes
from vitviz.weights.modules.unwrap import package_of, vision_config

IMAGE_ATTRIBUTES = ("image_size", "img_size", "input_size")
# Parameters with tokens that are not patches, in the order of the packages.
TOKEN_PARAMETERS = {
    "cls": ("cls_token", "class_token", "class_embedding"),
    "distillation": ("dist_token", "distillation_token"),
    "register": ("reg_token", "register_tokens", "registers"),
    "detection": ("detection_tokens",),
}
# Most tokens that are not patches, where nothing tells their number; and patches, where nothing tells their size.
MAX_EXTRA, LIKELY_PATCHES = 9, [(side, side) for side in (16, 14, 8, 32, 4, 12, 7, 2)]
PACKAGES_IN_ORDER = ("timm", "transformers", "torchvision", "open_clip", "dinov2", "dinov3")


def find_image_size(module: nn.Module) -> Size | None:
    """Height and width of the module's images; None if it does not state them.

    timm's patch embedding takes precedence over transformers' configuration, and this over the module's attributes. The
    image of a network for clips is a strip with a picture for each tube.
    """
    embedding = getattr(module, "patch_embed", None)
    pretrained: Any = getattr(module, "pretrained_cfg", None)
    input_size: Any = pretrained.get("input_size") if isinstance(pretrained, Mapping) else None
    candidates = [getattr(embedding, "img_size", None), input_size[1:] if are_sides(input_size, 3) else None]
    if getattr(module, "dynamic_img_size", False):
        # timm prepares pictures at the size in the file, even if it is not the trained one.
        candidates.reverse()
    config = vision_config(module)
    for holder in (config, module):
        candidates += [getattr(holder, name, None) for name in IMAGE_ATTRIBUTES]
    if isinstance(count := getattr(config, "num_patches", None), int):
        # SigLIP 2's tower for pictures of any shape has positions of a square of patches.
        candidates.append(isqrt(count) * config.patch_size)
    size, clip = next(filter(None, map(both_sides, candidates)), None), clip_tubes(module)
    return size if size is None or clip is None else (clip[0] * size[0], size[1])


def find_patch_size(module: nn.Module, size: Size, tokens: int, extra: int) -> Size | None:
    """Height and width of a patch; None if nothing tells.

    What the module states, or its only convolution on pixels whose stride equals its kernel, comes first if there are
    as many tokens. Else a stem may merge patches: the grid of its tokens, what it states, a grid of a few tokens less.

    Args:
        module: that attends among one grid of patches.
        size: height and width of its images.
        tokens: number of its tokens.
        extra: number of those that are not patches, as far as its parameters tell.
    """
    grids = [grid_of(tokens - others, size) for others in (extra, *range(min(tokens, MAX_EXTRA + 1)))]
    measured = [None if grid is None else (size[0] // grid[0], size[1] // grid[1]) for grid in grids]
    stated = find_stated_patch(module)
    fits = stated is not None and (size[0] // stated[0]) * (size[1] // stated[1]) == tokens - extra
    return next(filter(None, (stated if fits else None, measured[0], stated, *measured)), None)


def likely_sizes(module: nn.Module) -> list[Size]:
    """Of square images whose patches could be as many as a tensor has positions, and at last 224 pixels."""
    stated = find_stated_patch(module)
    tensors = (*module.named_parameters(), *module.named_buffers())
    counts = {
        tensor.shape[-2]
        for name, tensor in tensors
        if tensor.ndim in (2, 3) and ("pos" in name or (tensor.ndim == 3 and len(tensor) == 1))
    }
    sides = (
        isqrt(count - extra)
        for count in sorted(counts, reverse=True)
        for extra in range(MAX_EXTRA + 1)
        if count - extra > 3 and isqrt(count - extra) ** 2 == count - extra
    )
    patches = LIKELY_PATCHES if stated is None else (stated,)
    return [*((side * height, side * width) for side in sides for height, width in patches), (224, 224)]


def whole_patches(size: Size, patch: Size) -> Size:
    """Height and width in pixels of the whole patches in an image."""
    return size[0] // patch[0] * patch[0], size[1] // patch[1] * patch[1]


def find_stated_patch(module: nn.Module) -> Size | None:
    """The patch that a module states, or that of its only convolution on pixels whose stride equals its kernel."""
    holders = (getattr(module, "patch_embed", None), vision_config(module), module)
    stated = [both_sides(getattr(holder, "patch_size", None)) for holder in holders]
    convolutions = {
        part.kernel_size
        for part in module.modules()
        if isinstance(part, nn.Conv2d) and part.in_channels in (1, 3) and part.kernel_size == part.stride != (1, 1)
    }
    only = both_sides(convolutions.pop()) if len(convolutions) == 1 else None
    return next(filter(None, (*stated, only)), None)


def find_channels(module: nn.Module) -> int | None:
    """The number of channels in the configuration or of the first convolution; None without either."""
    stated = getattr(vision_config(module), "num_channels", None)
    convolution = next((submodule for submodule in module.modules() if isinstance(submodule, nn.Conv2d)), None)
    return stated if isinstance(stated, int) else None if convolution is None else convolution.in_channels


def describe_overlap(module: nn.Module) -> str:
    """The reason why a module with overlapping patches is refused; empty for another module."""
    convolutions = [submodule for submodule in module.modules() if isinstance(submodule, nn.Conv2d)]
    if len(convolutions) != 1:
        return ""
    kernel, stride = convolutions[0].kernel_size, convolutions[0].stride
    if not any(1 < step < side for side, step in zip(kernel, stride, strict=True)):
        return ""
    return (
        f"; its patches overlap, {kernel[0]}×{kernel[1]} pixels with a stride of {stride[0]}×{stride[1]}, and vitviz "
        "shows only patches that lie side by side"
    )


def find_prefix(module: nn.Module) -> tuple[str, ...] | None:
    """Names of the tokens that are not patches, from the names of parameters.

    None for several kinds of tokens in a module of another package, since their order is unknown.
    """
    shapes = [(name.rpartition(".")[2], each.shape) for name, each in module.named_parameters() if each.ndim]
    # A vector is one token.
    counts = {
        kind: sum((1, *shape)[-2] for name, shape in shapes if name in names)
        for kind, names in TOKEN_PARAMETERS.items()
    }
    kinds = [kind for kind, count in counts.items() if count]
    if len(kinds) > 1 and package_of(module) not in PACKAGES_IN_ORDER:
        return None
    # PiT has both tokens in one parameter.
    if counts["cls"] == 2 and hasattr(module, "head_dist"):
        counts |= {"cls": 1, "distillation": 1}
    if max(counts["cls"], counts["distillation"]) > 1:
        return None
    single_tokens = tuple(kind for kind in ("cls", "distillation") if counts[kind])
    return (
        *single_tokens,
        *(f"{kind} {number + 1}" for kind in ("register", "detection") for number in range(counts[kind])),
    )
