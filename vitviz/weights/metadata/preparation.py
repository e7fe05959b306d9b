"""How pictures are prepared for a checkpoint: what the JSON files beside it say of it."""

from __future__ import annotations

from dataclasses import replace

from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.image_processors import read_image_processor
from vitviz.weights.metadata.open_clip_transform import read_open_clip_transform
from vitviz.weights.metadata.rules import CLIP, HALVES, IMAGENET
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.metadata.timm_transform import read_timm_transform

__all__ = ["CLIP", "HALVES", "IMAGENET", "NORMALISATIONS", "UNSAID", "read_preprocessing"]

NORMALISATIONS = {"imagenet": IMAGENET, "half": HALVES, "clip": CLIP, "none": ((0.0,) * 3, (1.0,) * 3)}
"""How pixels are standardised, by the names that a user may say: means and deviations of red, green and blue."""

UNSAID = "the family's convention: no file beside the checkpoint says how its pictures are prepared"
"""The sentence of a preprocessing that is the default."""


def read_preprocessing(
    sidecars: Sidecars,
    image_height: int,
    image_width: int,
    default: Preprocessing,
    patch: tuple[int, int] = (1, 1),
    any_size: bool = False,
) -> tuple[Preprocessing, str]:
    """The checkpoint's own preprocessing, and a sentence that says where it comes from.

    Of several files, timm's comes first, then transformers', then open_clip's. Where a file speaks of another grid of
    patches than the network's, the part of the picture that it keeps stays the same, and the sentence says so.

    Args:
        sidecars: what lies beside the checkpoint.
        image_height, image_width: what the network was trained at, in pixels; at most 64 million together.
        default: the convention of its family, where no file says anything; has as many channels as the network.
        patch: height and width of the network's patches in pixels.
        any_size: whether its library runs the network at any size: then the size that a file states is used.

    Raises:
        CheckpointError: a file asks for what :class:`Preprocessing` cannot do exactly, or for what cannot be.
    """
    for read in (read_timm_transform, read_image_processor, read_open_clip_transform):
        rule = read(sidecars, len(default.mean))
        if rule is not None:
            return rule.fit_network(image_height, image_width, patch, any_size)
    return replace(default, height=image_height, width=image_width), UNSAID
