"""The preprocessing that the JSON files beside a checkpoint state."""

from __future__ import annotations

from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.image_processors import read_image_processor
from vitviz.weights.metadata.open_clip_transform import read_open_clip_transform
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.metadata.timm_transform import read_timm_transform

NOT_STATED = "the family's convention: no file beside the checkpoint says how its pictures are prepared"
"""The sentence for a preprocessing that no file states."""


def read_preprocessing(
    sidecars: Sidecars,
    image_height: int,
    image_width: int,
    default: Preprocessing,
    patch: tuple[int, int] = (1, 1),
    any_size: bool = False,
) -> tuple[Preprocessing, str, str]:
    """The checkpoint's preprocessing, a sentence with its source, and an addition if only its package's defaults state
    some of it.

    timm's file takes precedence over that of transformers, and this over that of open_clip. If a file states another
    grid of patches than the network's, the same fraction of the picture is kept, and the sentence says so.

    Args:
        sidecars: the JSON files beside the checkpoint.
        image_height, image_width: of the trained input, in pixels; at most 64 million together.
        default: the convention of the family, returned if no file states one; has the channels of the network.
        patch: height and width of the network's patches in pixels.
        any_size: whether its library runs the network at any size, so that the size in a file is used.

    Raises:
        CheckpointError: a file states values that are illegal, or that :class:`Preprocessing` cannot follow exactly.
    """
    for read_rule in (read_timm_transform, read_image_processor, read_open_clip_transform):
        rule = read_rule(sidecars, len(default.mean))
        if rule is not None:
            preprocessing, source = rule.fit_network(image_height, image_width, patch, any_size)
            return preprocessing, source, rule.assumption
    return default, NOT_STATED, ""
