"""The sizes of a module's images and patches, and the names of its other tokens: what it says of itself.

Nothing that is found here is believed: the capture measures which token is which patch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import several
from vitviz.weights.modules.calling import clip_strip
from vitviz.weights.modules.unwrap import package_of

Size = tuple[int, int]
IMAGE_ATTRIBUTES = ("image_size", "img_size", "input_size")
# Parameters that hold tokens which are no patches, in the order in which packages put them.
TOKEN_PARAMETERS = {
    "cls": ("cls_token", "class_token", "class_embedding"),
    "distillation": ("dist_token", "distillation_token"),
    "register": ("reg_token", "register_tokens", "registers"),
    "detection": ("detection_tokens",),
}
PACKAGES_IN_ORDER = ("timm", "transformers", "torchvision", "open_clip", "dinov2", "dinov3")


def find_image_size(module: nn.Module) -> Size | None:
    """Height and width of the images that the module was made for; None where it does not say.

    timm's patch embedding comes first, then transformers' configuration, then the module's own attributes. That of a
    network for clips is a strip of its tubes' pictures.
    """
    embedding = getattr(module, "patch_embed", None)
    pretrained: Any = getattr(module, "pretrained_cfg", None)
    input_size: Any = pretrained.get("input_size") if isinstance(pretrained, Mapping) else None
    strip = clip_strip(module)
    if strip is not None:
        sides = _pair(_vision_config(module).image_size)
        return None if sides is None else (strip.tubes * sides[0], sides[1])
    stated = [getattr(embedding, "img_size", None), input_size[1:] if _is_sides(input_size, 3) else None]
    for holder in (_vision_config(module), module):
        stated += [getattr(holder, name, None) for name in IMAGE_ATTRIBUTES]
    return next(filter(None, map(_pair, stated)), None)


def find_patch_size(module: nn.Module, image_size: Size) -> Size | None:
    """Height and width of a patch; None where the module does not say.

    A grid that timm's patch embedding states comes first: a stem may make one patch of several.
    """
    embedding = getattr(module, "patch_embed", None)
    grid = _pair(getattr(embedding, "grid_size", None))
    if grid is not None and image_size == _pair(getattr(embedding, "img_size", None)):
        height, width = (side / count for side, count in zip(image_size, grid, strict=True))
        if height.is_integer() and width.is_integer():
            return int(height), int(width)
    # Of a tube, the last two sides.
    tube: Any = getattr(_vision_config(module), "tubelet_size", None)
    if clip_strip(module) is not None and _is_sides(tube, 3):
        return tube[1], tube[2]
    # NaFlexViT's stands under another name.
    holders = (embedding, getattr(module, "embeds", None), _vision_config(module), module)
    found = next(filter(None, (_pair(getattr(holder, "patch_size", None)) for holder in holders)), None)
    return found or _convolution_patch(module)


def find_channels(module: nn.Module) -> int:
    """The channels of the first convolution or of the configuration; three where neither says."""
    stated = getattr(_vision_config(module), "num_channels", None)
    first = next((part for part in module.modules() if isinstance(part, nn.Conv2d)), None)
    return stated if isinstance(stated, int) else 3 if first is None else first.in_channels


def find_depth(module: nn.Module) -> int | None:
    """How many layers the configuration or timm's list of blocks has; None where neither is there."""
    stated = getattr(_vision_config(module), "num_hidden_layers", None)
    blocks = getattr(module, "blocks", None)
    if isinstance(stated, int):
        return stated
    return len(blocks) if package_of(module) == "timm" and isinstance(blocks, nn.Sequential | nn.ModuleList) else None


def find_prefix(module: nn.Module) -> tuple[str, ...] | None:
    """Names of the tokens that are no patches, by the parameters that hold them.

    None where a module of another package has several kinds, whose order is not known.
    """
    counts = {kind: sum(_tokens(module, names)) for kind, names in TOKEN_PARAMETERS.items()}
    kinds = [kind for kind, count in counts.items() if count]
    if len(kinds) > 1 and package_of(module) not in PACKAGES_IN_ORDER:
        return None
    # PiT holds both in one parameter.
    if counts["cls"] == 2 and hasattr(module, "head_dist"):
        counts |= {"cls": 1, "distillation": 1}
    if max(counts["cls"], counts["distillation"]) > 1:
        return None
    single = tuple(kind for kind in ("cls", "distillation") if counts[kind])
    return (
        *single,
        *(f"{kind} {number + 1}" for kind in ("register", "detection") for number in range(counts[kind])),
    )


def checked_size(name: str, value: int | tuple[int, int] | None) -> Size | None:
    """One number or a pair as height and width.

    Raises:
        ConfigError: it is something else.
    """
    if value is None:
        return None
    found = _pair(value)
    if found is None:
        raise ConfigError(f"{name} = {value!r}: expected one or two whole numbers above 0 (height, width)")
    return found


def checked_prefix(prefix: Any) -> tuple[str, ...]:
    """Names of tokens.

    Raises:
        ConfigError: they are none.
    """
    if isinstance(prefix, str) or not isinstance(prefix, list | tuple) or not all(isinstance(e, str) for e in prefix):
        raise ConfigError(f"prefix = {prefix!r}: expected a list of names, such as ['cls', 'register 1']")
    if len(set(prefix)) != len(prefix):
        raise ConfigError(f"prefix = {several(list(prefix))}: names must differ")
    return tuple(prefix)


def _tokens(module: nn.Module, names: tuple[str, ...]) -> Iterator[int]:
    """How many tokens each parameter of one of these names holds."""
    for name, parameter in module.named_parameters():
        if name.rpartition(".")[2] in names and parameter.ndim:
            yield 1 if parameter.ndim == 1 else parameter.shape[-2]


def _convolution_patch(module: nn.Module) -> Size | None:
    """The kernel of the one convolution that reads colours and steps by its own size."""
    found = {
        (part.kernel_size[0], part.kernel_size[1])
        for part in module.modules()
        if isinstance(part, nn.Conv2d)
        and part.in_channels in (1, 3)
        and part.kernel_size == part.stride
        and part.kernel_size[0] > 1
    }
    return found.pop() if len(found) == 1 else None


def _vision_config(module: nn.Module) -> Any:
    """transformers' configuration, of a model made of others that of its images' tower; None where there is none."""
    config = getattr(module, "config", None) if package_of(module) == "transformers" else None
    holders = (getattr(config, name, None) for name in ("vision_config", "backbone_config"))
    return next((found for found in holders if hasattr(found, "patch_size")), config)


def _pair(value: Any) -> Size | None:
    if _is_side(value):
        return value, value
    return (value[0], value[1]) if _is_sides(value, 2) else None


def _is_sides(value: Any, count: int) -> bool:
    return isinstance(value, tuple | list) and len(value) == count and all(map(_is_side, value))


def _is_side(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
