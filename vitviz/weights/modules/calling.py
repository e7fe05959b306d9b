"""Functions that call a module with pixels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import torch
from einops import rearrange, repeat
from torch import nn
from torch.nn.functional import pad

from vitviz.errors.kinds import ConfigError
from vitviz.models.watched.module_config import Size
from vitviz.models.watched.outputs import Forward, primary_output
from vitviz.weights.modules.unwrap import package_of, vision_config

# model_type of transformers' vision towers that take patches packed as by Qwen2-VL's processor.
PACKED = (
    *("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe", "qwen3_5"),
    *("qwen3_5_moe", "glm4v", "glm4v_moe", "glm46v", "glm_ocr", "exaone4_5"),
)
# model_type of transformers' networks for clips with joint attention over space and time.
CLIPS = ("videomae", "vivit")


def call_with_pixels(
    module: nn.Module, pixels: torch.Tensor, size: Size, arguments: frozenset[str], patch: int | None
) -> Any:
    """Call a module with pixels; at another size than its own, request interpolated positions.

    Args:
        module: of any package.
        pixels: ``"batch channel height width"``.
        size: height and width of the module's images.
        arguments: names of those that it takes; in transformers, pixels are ``pixel_values``.
        patch: side of a patch in pixels, if it is known.
    """
    options: dict[str, Any] = {}
    if "interpolate_pos_encoding" in arguments and tuple(pixels.shape[-2:]) != size:
        options["interpolate_pos_encoding"] = True
    if patch and {"pixel_values", "noise"} <= arguments:
        # Of MAE, which sorts patches by noise: ascending noise keeps the order of the patches.
        count = (pixels.shape[-2] // patch) * (pixels.shape[-1] // patch)
        options["noise"] = torch.arange(count, device=pixels.device).float().expand(len(pixels), -1)
    call = entry(module)
    return call(pixel_values=pixels, **options) if "pixel_values" in arguments else call(pixels, **options)


def call_packed(module: nn.Module, pixels: torch.Tensor, patch: int, merge_size: int, frames: int) -> torch.Tensor:
    """Call a vision tower that takes patches as rows of numbers, and their counts in time, height and width.

    Patches that are merged after the tower are adjacent, row by row. The image is repeated in time.

    Args:
        module: the tower.
        pixels: ``"1 channel height width"``, of whole groups.
        patch, merge_size, frames: side of a patch in pixels, side of a merged group in patches, images per patch.

    Returns:
        Its tokens or features, ``"1 token feature"``.
    """
    rows = rearrange(
        repeat(pixels, "1 channel height width -> frame channel height width", frame=frames),
        "frame channel (down row py) (right column px) -> (down right row column) (channel frame py px)",
        py=patch,
        px=patch,
        row=merge_size,
        column=merge_size,
    )
    grid = torch.tensor([[1, *(side // patch for side in pixels.shape[-2:])]], device=pixels.device)
    return primary_output(module(rows, grid_thw=grid))[None]


def call_with_clip(module: nn.Module, pixels: torch.Tensor, tubes: int, frames: int) -> Any:
    """Call a network for clips, whose tokens are patches of several frames (tubes), with a strip of pictures.

    Args:
        module: the network.
        pixels: the strip, ``"batch channel height width"``: a picture for each tube, one below the other.
        tubes, frames: number of tubes in a clip, and of frames in a tube, which all show its picture.
    """
    order = "batch channel (tube height) width -> batch (tube frame) channel height width"
    return module(pixel_values=repeat(pixels, order, tube=tubes, frame=frames))


def call_with_border(module: nn.Module, pixels: torch.Tensor, forward: Forward, whole: Size, size: Size) -> Any:
    """Call a module of images whose sides are no multiple of its patches with the part that its patches read.

    Args:
        module, forward: of any package.
        pixels: ``"batch channel height width"``.
        whole, size: height and width of that part, and of the module's images.
    """
    if tuple(pixels.shape[-2:]) == whole:
        pixels = pad(pixels, (0, size[1] - whole[1], 0, size[0] - whole[0]))
    return forward(module, pixels)


def call_flexible(module: nn.Module, pixels: torch.Tensor, patch: int) -> Any:
    """Call SigLIP 2's tower for images of any shape, which takes patches as rows of numbers, and their counts."""
    order = "batch channel (row py) (column px) -> batch (row column) (py px channel)"
    rows = rearrange(pixels, order, py=patch, px=patch)
    shape = [[side // patch for side in pixels.shape[-2:]]] * len(pixels)
    mask = torch.ones(rows.shape[:2], dtype=torch.long, device=pixels.device)
    shapes = torch.tensor(shape, device=pixels.device)
    return entry(module)(pixel_values=rows, pixel_attention_mask=mask, spatial_shapes=shapes)


def entry(module: Any) -> Callable[..., Any]:
    """What takes pictures: the module, or the method of transformers' networks of pictures and texts."""
    return module.get_image_features if hasattr(module, "get_text_features") else module


def clip_tubes(module: nn.Module) -> tuple[int, int] | None:
    """Number of tubes in a clip, and of frames in a tube, of transformers' networks for clips; None for another one."""
    config: Any = getattr(module, "config", None)
    if package_of(module) != "transformers" or getattr(config, "model_type", None) not in CLIPS:
        return None
    frames = config.tubelet_size if isinstance(config.tubelet_size, int) else config.tubelet_size[0]
    return config.num_frames // frames, frames


def default_forward(module: nn.Module, name: str, size: Size) -> Forward:
    """The forward function for a module, by the arguments that it takes.

    Args:
        module: of any package.
        name: of the module, for messages.
        size: height and width of its images.

    Raises:
        ConfigError: it does not take pixels.
    """
    call = entry(module)
    arguments = frozenset(signature(module.forward if call is module else call).parameters)
    if (clip := clip_tubes(module)) is not None:
        return partial(call_with_clip, tubes=clip[0], frames=clip[1])
    patch = getattr(vision_config(module), "patch_size", None)
    patch = patch if isinstance(patch, int) else None
    if type(module).__name__.startswith("Siglip2") and "spatial_shapes" in arguments and patch:
        return partial(call_flexible, patch=patch)
    config = getattr(module, "config", None)
    if "grid_thw" in arguments:
        model_type = str(getattr(config, "model_type", "")).removesuffix("_encoder").removesuffix("_vision")
        merge_size = getattr(config, "spatial_merge_size", None)
        if package_of(module) != "transformers" or model_type not in PACKED or not patch or not merge_size:
            expected = "expected forward = (module, pixels) to its output, which packs pixels into its patches"
            raise ConfigError(f"{name}: the module takes grid_thw and patches of its own making; {expected}")
        frames = getattr(config, "temporal_patch_size", 1) or 1
        return partial(call_packed, patch=patch, merge_size=merge_size, frames=frames)
    if patch and {"pixel_values", "noise"} <= arguments and (ratio := getattr(config, "mask_ratio", 0)):
        remedy = "set module.config.mask_ratio = 0.0 and load it again"
        raise ConfigError(f"{name}: mask_ratio = {ratio} leaves out a random part of the patches: {remedy}")
    return partial(call_with_pixels, size=size, arguments=arguments, patch=patch)
