"""Functions that call a module with pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from einops import rearrange, repeat
from torch import nn

from vitviz.errors.kinds import ConfigError
from vitviz.models.watched.outputs import primary_output
from vitviz.weights.model import Forward
from vitviz.weights.modules.unwrap import package_of, vision_config

Size = tuple[int, int]
# model_type of transformers' vision towers that take patches packed as by Qwen2-VL's processor.
PACKED = (
    *("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe", "qwen3_5"),
    *("qwen3_5_moe", "glm4v", "glm4v_moe", "glm46v", "glm_ocr", "exaone4_5"),
)
# model_type of transformers' networks for clips with joint attention over space and time.
CLIPS = ("videomae", "vivit")


@dataclass(frozen=True)
class DefaultForward:
    """Calls a module with pixels; at another size than its own, it requests interpolated positions.

    Args:
        size: height and width of the module's images.
        is_named: whether its argument is called ``pixel_values``, as in transformers.
        interpolates: whether it interpolates positions only on request.
        ordered_patch: side of a patch of MAE, which sorts patches by noise; None for another module.
    """

    size: Size
    is_named: bool
    interpolates: bool
    ordered_patch: int | None = None

    def __call__(self, module: nn.Module, pixels: torch.Tensor) -> Any:
        is_other_size = self.interpolates and tuple(pixels.shape[-2:]) != self.size
        options: dict[str, Any] = {"interpolate_pos_encoding": True} if is_other_size else {}
        if self.ordered_patch is not None:
            # Ascending noise keeps the order of the patches.
            count = (pixels.shape[-2] // self.ordered_patch) * (pixels.shape[-1] // self.ordered_patch)
            options["noise"] = torch.arange(count, device=pixels.device).float().expand(len(pixels), -1)
        call = entry(module)
        return call(pixel_values=pixels, **options) if self.is_named else call(pixels, **options)


@dataclass(frozen=True)
class PackedForward:
    """Calls a vision tower that takes patches as rows of numbers, and their counts in time, height and width.

    Patches that are merged after the tower are adjacent, row by row. The image is repeated in time.

    Args:
        patch, merge_size, frames: side of a patch in pixels, side of a merged group in patches, images per patch.
    """

    patch: int
    merge_size: int
    frames: int

    def __call__(self, module: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
        """The tower's tokens or features, ``"1 token feature"``.

        Raises:
            ConfigError: the sides of the image are not multiples of a group's side.
        """
        height, width = (side // self.patch for side in pixels.shape[-2:])
        if height % self.merge_size or width % self.merge_size:
            side = self.patch * self.merge_size
            raise ConfigError(f"image of {pixels.shape[-2]}×{pixels.shape[-1]} pixels: expected multiples of {side}")
        rows = rearrange(
            repeat(pixels, "1 channel height width -> frame channel height width", frame=self.frames),
            "frame channel (down row py) (right column px) -> (down right row column) (channel frame py px)",
            py=self.patch,
            px=self.patch,
            row=self.merge_size,
            column=self.merge_size,
        )
        grid = torch.tensor([[1, height, width]], device=pixels.device)
        return primary_output(module(rows, grid_thw=grid))[None]


@dataclass(frozen=True)
class ClipForward:
    """Calls a network for clips, whose tokens are patches of several frames (tubes), with a strip of pictures.

    The strip has one picture for each tube, one below the other. All frames of a tube show its picture.

    Args:
        tubes, frames: number of tubes in a clip, and of frames in a tube.
    """

    tubes: int
    frames: int

    def __call__(self, module: nn.Module, pixels: torch.Tensor) -> Any:
        """The network's result for a strip ``"batch channel height width"``.

        Raises:
            ConfigError: the height of the strip is not a multiple of the number of tubes.
        """
        if pixels.shape[-2] % self.tubes:
            size = f"{pixels.shape[-1]}×{pixels.shape[-2]} pixels"
            raise ConfigError(f"a strip of {size}: expected {self.tubes} pictures of the same height below each other")
        order = "batch channel (tube height) width -> batch (tube frame) channel height width"
        clip = repeat(pixels, order, tube=self.tubes, frame=self.frames)
        return module(pixel_values=clip)


@dataclass(frozen=True)
class FlexibleForward:
    """Calls SigLIP 2's tower for images of any shape, which takes patches as rows of numbers, and their counts.

    Args:
        patch: side of a patch in pixels.
    """

    patch: int

    def __call__(self, module: nn.Module, pixels: torch.Tensor) -> Any:
        """The tower's result for images."""
        rows = rearrange(
            pixels,
            "batch channel (row py) (column px) -> batch (row column) (py px channel)",
            py=self.patch,
            px=self.patch,
        )
        shape = [[side // self.patch for side in pixels.shape[-2:]]] * len(pixels)
        mask = torch.ones(rows.shape[:2], dtype=torch.long, device=pixels.device)
        shapes = torch.tensor(shape, device=pixels.device)
        return entry(module)(pixel_values=rows, pixel_attention_mask=mask, spatial_shapes=shapes)


def entry(module: Any) -> Callable[..., Any]:
    """What takes pictures: the module, or the method of transformers' networks of pictures and texts."""
    return module.get_image_features if hasattr(module, "get_text_features") else module


def clip_strip(module: nn.Module) -> ClipForward | None:
    """The forward function of transformers' networks for clips; None for another module."""
    config: Any = getattr(module, "config", None)
    if package_of(module) != "transformers" or getattr(config, "model_type", None) not in CLIPS:
        return None
    frames, tube = config.num_frames, config.tubelet_size
    frames_each = tube if isinstance(tube, int) else tube[0]
    return ClipForward(frames // frames_each, frames_each)


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
    parameters = signature(module.forward if call is module else call).parameters
    strip = clip_strip(module)
    if strip is not None:
        return strip
    patch = getattr(vision_config(module), "patch_size", None)
    if type(module).__name__.startswith("Siglip2") and "spatial_shapes" in parameters and isinstance(patch, int):
        return FlexibleForward(patch)
    config = getattr(module, "config", None)
    if "grid_thw" not in parameters:
        ordered_patch = patch if {"pixel_values", "noise"} <= parameters.keys() else None
        ratio = getattr(config, "mask_ratio", 0)
        if ordered_patch is not None and ratio:
            remedy = "set module.config.mask_ratio = 0.0 and load it again"
            raise ConfigError(f"{name}: mask_ratio = {ratio} leaves out a random part of the patches: {remedy}")
        is_named, interpolates = "pixel_values" in parameters, "interpolate_pos_encoding" in parameters
        return DefaultForward(size, is_named, interpolates, ordered_patch)
    model_type = str(getattr(config, "model_type", "")).removesuffix("_encoder").removesuffix("_vision")
    merge_size = getattr(config, "spatial_merge_size", None)
    if package_of(module) != "transformers" or model_type not in PACKED or not isinstance(patch, int) or not merge_size:
        expected = "expected forward = (module, pixels) to its output, which packs pixels into its patches"
        raise ConfigError(f"{name}: the module takes grid_thw and patches of its own making; {expected}")
    return PackedForward(patch, merge_size, getattr(config, "temporal_patch_size", 1) or 1)
