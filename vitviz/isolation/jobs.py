"""The jobs that a child runs on a stranger's file.

A job is an object in the child, whose methods the parent calls by name. Answers are JSON, and the bytes of an array or
of a vitviz checkpoint. The parent executes and unpickles nothing of them, since a hostile file may have taken over the
child.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vitviz.images.clip_facts import ClipLimits
from vitviz.images.clips import frame_at, open_video
from vitviz.images.colours import ColorProfile
from vitviz.images.muxing import join
from vitviz.images.opening import UnopenedImage
from vitviz.images.preprocessing import Fit, Preprocessing
from vitviz.images.sources import ValueRange
from vitviz.models.config import ViTConfig
from vitviz.weights.load import load
from vitviz.weights.model import Model, Origin
from vitviz.weights.native import load_checkpoint, write_checkpoint
from vitviz.weights.read import read_checkpoint
from vitviz.weights.text_tower import tower_from_origin

Answer = dict[str, Any]
"""A JSON object."""


class PictureJob:
    """A picture, decoded on request, once.

    Args:
        path, name, value_range, color_profile: as for :func:`vitviz.open_image`.
    """

    def __init__(
        self, path: Path, name: str, value_range: ValueRange | None = None, color_profile: ColorProfile = "apply"
    ) -> None:
        self.unopened = UnopenedImage(path, name, value_range, color_profile)

    def pixels(self, stream: BinaryIO) -> Answer:
        """The number of pixels that the header states."""
        return {"pixels": math.prod(self.unopened.size)}

    def decode(self, stream: BinaryIO, niceness: int) -> Answer:
        """Decode it; width and height when upright."""
        os.nice(niceness)
        self.image = self.unopened.open()
        return {"width": self.image.width, "height": self.image.height}

    def model_input(
        self,
        stream: BinaryIO,
        preprocessing: Preprocessing,
        patch_height: int,
        patch_width: int,
        fit: Fit | None,
        longest_side: int,
    ) -> Answer:
        """The shape of the model's input, its geometry on the resized picture, and what was assumed of the picture.

        Writes the input, ``"channel height width"``, float32, and the resized picture, ``"height width channel"``,
        uint8.
        """
        prepared = preprocessing.prepare(self.image, patch_height, patch_width, fit).resized(longest_side)
        stream.write(prepared.pixels.float().contiguous().numpy().data)
        stream.write(np.ascontiguousarray(prepared.image).data)
        shape, assumptions = list(prepared.pixels.shape), list(prepared.assumptions)
        return {"shape": shape, "geometry": asdict(prepared.geometry), "assumptions": assumptions}

    def png(self, stream: BinaryIO) -> Answer:
        """Write the picture as a PNG file, fast rather than small."""
        self.image.save(stream, "PNG", compress_level=1)
        return {}


class ClipJob:
    """A clip whose frames are decoded on request.

    Args:
        path, name, limits: as for :func:`vitviz.images.clips.open_video`.
    """

    def __init__(self, path: Path, name: str, limits: ClipLimits) -> None:
        self.clip = open_video(path, name, limits)

    def facts(self, stream: BinaryIO) -> Answer:
        """The facts in the header."""
        return asdict(self.clip.facts)

    def skip(self, stream: BinaryIO, count: int) -> Answer:
        """Skip frames."""
        return {"skipped": self.clip.skip(count)}

    def read(self, stream: BinaryIO, count: int) -> Answer:
        """Write the next frames over the previous ones: ``"frame height width channel"``, uint8."""
        frames = self.clip.read(count)
        stream.seek(0)
        for frame in frames:
            stream.write(np.ascontiguousarray(frame.image).data)
        return {"frames": [[frame.index, frame.ticks] for frame in frames]}


class JoinJob:
    """Joins parts of a video into one file, with a clip's sound.

    Args:
        parts, sound, output, name: as for :func:`vitviz.images.muxing.join`.
    """

    def __init__(self, parts: list[Path], sound: Path | None, output: Path, name: str) -> None:
        join(parts, sound, output, name)


class FrameJob(PictureJob):
    """One frame of a clip as a picture.

    Args:
        path, name, limits: as for :func:`vitviz.images.clips.open_video`.
        index: of the frame.
    """

    def __init__(self, path: Path, name: str, limits: ClipLimits, index: int) -> None:
        self.clip, self.index = open_video(path, name, limits), index

    def pixels(self, stream: BinaryIO) -> Answer:
        """The number of pixels of a frame."""
        return {"pixels": self.clip.facts.width * self.clip.facts.height}

    def decode(self, stream: BinaryIO, niceness: int) -> Answer:
        os.nice(niceness)
        with self.clip as clip:
            self.image = frame_at(clip, self.index).image
        return {"width": self.image.width, "height": self.image.height}


class CheckpointJob:
    """Converts a checkpoint of any family to one of vitviz.

    Args:
        path, name, max_bytes, overrides: as for :func:`vitviz.weights.read_checkpoint`.
    """

    def __init__(self, path: Path, name: str | None, max_bytes: int, overrides: dict[str, Any]) -> None:
        self.model = read_checkpoint(path, name, max_bytes=max_bytes, **overrides).model

    def write(self, stream: BinaryIO) -> Answer:
        """Write the checkpoint."""
        return _write(stream, self.model)


class PublishedJob(CheckpointJob):
    """A checkpoint in the hub's cache, by its name; nothing is downloaded."""

    def __init__(self, source: str, max_bytes: int, overrides: dict[str, Any]) -> None:
        _go_offline()
        # engine="own": no other package opens what a stranger's file names.
        self.model = load(source, max_bytes=max_bytes, engine="own", **overrides)


class SnapshotJob(CheckpointJob):
    """Opens one snapshot of a model in training."""

    def __init__(self, path: Path, name: str, max_bytes: int) -> None:
        self.model = load_checkpoint(path, name, max_bytes)


class TextJob:
    """The text tower of a checkpoint, for any number of texts.

    Args:
        name, origin, config: as for :func:`vitviz.weights.text_tower.tower_from_origin`.
    """

    def __init__(self, name: str, origin: Origin, config: ViTConfig) -> None:
        _go_offline()
        self.tower = tower_from_origin(name, origin, config)

    def logit(self, stream: BinaryIO) -> Answer:
        """The scale and bias that turn a cosine into a logit."""
        return {"scale": self.tower.scale, "bias": self.tower.bias}

    def features(self, stream: BinaryIO, text: str) -> Answer:
        """The features of a text, as a list of numbers."""
        return {"features": self.tower.features(text).float().tolist()}


JOBS: dict[str, type] = {
    job.__name__: job
    for job in (PictureJob, ClipJob, FrameJob, JoinJob, CheckpointJob, PublishedJob, SnapshotJob, TextJob)
}


def _go_offline() -> None:
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True


def _write(stream: BinaryIO, model: Model) -> Answer:
    write_checkpoint(stream, model)
    return {
        "name": model.name,
        "assumptions": list(model.assumptions),
        "folder": None if model.origin is None else str(model.origin.folder),
    }
