"""How a module is called with pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from einops import rearrange, repeat
from torch import nn

from vitviz.errors.kinds import ConfigError
from vitviz.models.capture.outputs import primary_output
from vitviz.weights.modules.unwrap import package_of

Forward = Callable[[nn.Module, torch.Tensor], Any]
Size = tuple[int, int]
# transformers' vision towers whose images are packed into patches as Qwen2-VL's processor does, by their model_type.
PACKED = (
    *("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe", "qwen3_5"),
    *("qwen3_5_moe", "glm4v", "glm4v_moe", "glm46v", "glm_ocr", "exaone4_5"),
)
# transformers' networks for clips in which every patch of every tube of frames attends to all others.
CLIPS = ("videomae", "vivit")


@dataclass(frozen=True)
class DefaultForward:
    """A module is called with its pixels, and at another size than its own with interpolated positions.

    Args:
        size: its own.
        is_named: whether its pixels are called ``pixel_values``, as in transformers.
        interpolates: whether it interpolates positions only on request.
    """

    size: Size
    is_named: bool
    interpolates: bool

    def __call__(self, module: nn.Module, pixels: torch.Tensor) -> Any:
        is_other = self.interpolates and tuple(pixels.shape[-2:]) != self.size
        options = {"interpolate_pos_encoding": True} if is_other else {}
        return module(pixel_values=pixels, **options) if self.is_named else module(pixels, **options)


@dataclass(frozen=True)
class PackedForward:
    """A vision tower that takes patches as rows of numbers, and how many there are in time, height and width.

    Groups of patches that are merged behind the tower stand together, row by row. A picture is repeated in time.

    Args:
        patch, merged, frames: pixels of a patch's side, patches of a group's side, and images of a patch.
    """

    patch: int
    merged: int
    frames: int

    def __call__(self, module: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
        """The tower's tokens or features, ``"1 token feature"``.

        Raises:
            ConfigError: a group of patches does not divide the image.
        """
        height, width = (side // self.patch for side in pixels.shape[-2:])
        if height % self.merged or width % self.merged:
            side = self.patch * self.merged
            raise ConfigError(f"image of {pixels.shape[-2]}×{pixels.shape[-1]} pixels: expected multiples of {side}")
        rows = rearrange(
            repeat(pixels, "1 channel height width -> frame channel height width", frame=self.frames),
            "frame channel (down row py) (right column px) -> (down right row column) (channel frame py px)",
            py=self.patch,
            px=self.patch,
            row=self.merged,
            column=self.merged,
        )
        grid = torch.tensor([[1, height, width]], device=pixels.device)
        return primary_output(module(rows, grid_thw=grid))[None]


@dataclass(frozen=True)
class ClipForward:
    """A network for clips whose tokens are patches of several frames each, tube after tube: it is called with a strip.

    Its picture is the tubes' pictures, one below the other, each of which stands for all frames of its tube.

    Args:
        tubes, frames: how many tubes a clip has, and a tube frames.
    """

    tubes: int
    frames: int

    def __call__(self, module: nn.Module, pixels: torch.Tensor) -> Any:
        """What the network returns of a strip ``"batch channel height width"``.

        Raises:
            ConfigError: the strip is not as many pictures.
        """
        if pixels.shape[-2] % self.tubes:
            size = f"{pixels.shape[-1]}×{pixels.shape[-2]} pixels"
            raise ConfigError(f"a strip of {size}: expected {self.tubes} pictures of the same height below each other")
        order = "batch channel (tube height) width -> batch (tube frame) channel height width"
        clip = repeat(pixels, order, tube=self.tubes, frame=self.frames)
        return module(pixel_values=clip)


@dataclass(frozen=True)
class FlexibleForward:
    """SigLIP 2's tower for images of any shape: it takes patches as rows of numbers, and how many there are.

    Args:
        patch: pixels of a patch's side.
    """

    patch: int

    def __call__(self, module: nn.Module, pixels: torch.Tensor) -> Any:
        """What the tower returns of an image."""
        rows = rearrange(
            pixels,
            "batch channel (row py) (column px) -> batch (row column) (py px channel)",
            py=self.patch,
            px=self.patch,
        )
        shape = [[side // self.patch for side in pixels.shape[-2:]]] * len(pixels)
        mask = torch.ones(rows.shape[:2], dtype=torch.long, device=pixels.device)
        shapes = torch.tensor(shape, device=pixels.device)
        return module(pixel_values=rows, pixel_attention_mask=mask, spatial_shapes=shapes)


def clip_strip(module: nn.Module) -> ClipForward | None:
    """How a network for clips of transformers is called whose tokens are tubes; None for another module."""
    config: Any = getattr(module, "config", None)
    if package_of(module) != "transformers" or getattr(config, "model_type", None) not in CLIPS:
        return None
    frames, tube = config.num_frames, config.tubelet_size
    frames_each = tube if isinstance(tube, int) else tube[0]
    return ClipForward(frames // frames_each, frames_each)


def default_forward(module: nn.Module, name: str, size: Size) -> Forward:
    """How a module is called, by its arguments.

    Args:
        module: of any package.
        name: what messages call it.
        size: of its images.

    Raises:
        ConfigError: it takes something else than pixels.
    """
    parameters = signature(module.forward).parameters
    strip = clip_strip(module)
    if strip is not None:
        return strip
    patch = getattr(getattr(module, "config", None), "patch_size", None)
    if type(module).__name__.startswith("Siglip2") and "spatial_shapes" in parameters and isinstance(patch, int):
        return FlexibleForward(patch)
    if "grid_thw" not in parameters:
        return DefaultForward(size, "pixel_values" in parameters, "interpolate_pos_encoding" in parameters)
    config = getattr(module, "config", None)
    kind = str(getattr(config, "model_type", "")).removesuffix("_encoder").removesuffix("_vision")
    merged = getattr(config, "spatial_merge_size", None)
    if package_of(module) != "transformers" or kind not in PACKED or not isinstance(patch, int) or not merged:
        expected = "expected forward = (module, pixels) to its output, which packs pixels into its patches"
        raise ConfigError(f"{name}: the module takes grid_thw and patches of its own making; {expected}")
    return PackedForward(patch, merged, getattr(config, "temporal_patch_size", 1) or 1)
