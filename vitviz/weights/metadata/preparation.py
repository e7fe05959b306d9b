"""The preprocessing that the JSON files beside a checkpoint state."""

from __future__ import annotations

from vitviz.weights.metadata.image_processors import read_image_processor
from vitviz.weights.metadata.open_clip_transform import read_open_clip_transform
from vitviz.weights.metadata.rules import PreprocessingRule
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.metadata.timm_transform import read_timm_transform


def find_rule(sidecars: Sidecars, channels: int) -> PreprocessingRule | None:
    """The preprocessing that the files beside a checkpoint state; None if none does.

    timm's file takes precedence over that of transformers, and this over that of open_clip.

    Args:
        sidecars: the files.
        channels: of the network's images.

    Raises:
        CheckpointError: a file states values that are illegal, or that :class:`Preprocessing` cannot follow exactly.
    """
    readers = (read_timm_transform, read_image_processor, read_open_clip_transform)
    return next((rule for read_rule in readers if (rule := read_rule(sidecars, channels)) is not None), None)
