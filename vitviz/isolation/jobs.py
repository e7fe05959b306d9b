"""The jobs: what a child does with a stranger's file.

A job is an object: it is made, and then asked by the names of its methods. What it answers is JSON and the bytes of an
array or of a vitviz checkpoint. The receiver executes and unpickles nothing of it, since a file may have taken
over the child that read it.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vitviz.images.clip_facts import ClipLimits
from vitviz.images.clips import frame_at, open_clip
from vitviz.images.muxing import join
from vitviz.images.opening import UnopenedImage
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.config import ViTConfig
from vitviz.weights.load import load
from vitviz.weights.model import Model, Origin
from vitviz.weights.native import load_checkpoint, write_checkpoint
from vitviz.weights.read import read_checkpoint
from vitviz.weights.text_tower import tower_of

Answer = dict[str, Any]
"""A JSON object."""


class PictureJob:
    """A picture, decoded once, when it is asked for.

    Args:
        path, name: as :func:`vitviz.open_image` takes them.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.unopened = UnopenedImage(path, name)

    def pixels(self, stream: BinaryIO) -> Answer:
        """The number of pixels by the header."""
        return {"pixels": math.prod(self.unopened.size)}

    def decode(self, stream: BinaryIO, niceness: int) -> Answer:
        """Decodes it; its width and height, upright."""
        os.nice(niceness)
        self.image = self.unopened.open()
        return {"width": self.image.width, "height": self.image.height}

    def prepare(
        self,
        stream: BinaryIO,
        preprocessing: Preprocessing,
        patch_height: int,
        patch_width: int,
        fit: str | None,
        longest_side: int,
    ) -> Answer:
        """The model's input, and the picture at another size with where the input lies on it.

        Writes the input, ``"channel height width"``, float32, and the picture, ``"height width channel"``, uint8.
        """
        prepared = preprocessing.prepare(self.image, patch_height, patch_width, fit).resized(longest_side)
        stream.write(prepared.pixels.float().contiguous().numpy().data)
        stream.write(np.ascontiguousarray(prepared.image).data)
        return {"shape": list(prepared.pixels.shape), "geometry": asdict(prepared.geometry)}

    def png(self, stream: BinaryIO) -> Answer:
        """Writes the picture as a PNG file, fast and not small."""
        self.image.save(stream, "PNG", compress_level=1)
        return {}


class ClipJob:
    """A clip, whose frames are decoded as they are asked for.

    Args:
        path, name, limits: as :func:`vitviz.images.clips.open_clip` takes them.
    """

    def __init__(self, path: Path, name: str, limits: ClipLimits) -> None:
        self.clip = open_clip(path, name, limits)

    def facts(self, stream: BinaryIO) -> Answer:
        """What the header says."""
        return asdict(self.clip.facts)

    def skip(self, stream: BinaryIO, count: int) -> Answer:
        """Passes over frames."""
        return {"skipped": self.clip.skip(count)}

    def read(self, stream: BinaryIO, count: int) -> Answer:
        """Writes frames over those before: ``"frame height width channel"``, uint8."""
        frames = self.clip.read(count)
        stream.seek(0)
        for frame in frames:
            stream.write(np.ascontiguousarray(frame.image).data)
        return {"frames": [[frame.index, frame.ticks] for frame in frames]}


class JoinJob:
    """Parts of a video, written as one with a clip's sound.

    Args:
        parts, sound, output, name: as :func:`vitviz.images.muxing.join` takes them.
    """

    def __init__(self, parts: list[Path], sound: Path | None, output: Path, name: str) -> None:
        join(parts, sound, output, name)


class FrameJob(PictureJob):
    """One frame of a clip as a picture.

    Args:
        path, name, limits: as :func:`vitviz.images.clips.open_clip` takes them.
        index: of the frame.
    """

    def __init__(self, path: Path, name: str, limits: ClipLimits, index: int) -> None:
        self.clip, self.index = open_clip(path, name, limits), index

    def pixels(self, stream: BinaryIO) -> Answer:
        """The number of pixels of a frame."""
        return {"pixels": self.clip.facts.width * self.clip.facts.height}

    def decode(self, stream: BinaryIO, niceness: int) -> Answer:
        os.nice(niceness)
        with self.clip as clip:
            self.image = frame_at(clip, self.index).image
        return {"width": self.image.width, "height": self.image.height}


class CheckpointJob:
    """A checkpoint of any family as one of vitviz's own.

    Args:
        path, name, max_bytes, overrides: as :func:`vitviz.weights.read_checkpoint` takes them.
    """

    def __init__(self, path: Path, name: str | None, max_bytes: int, overrides: dict[str, Any]) -> None:
        self.model = read_checkpoint(path, name, max_bytes=max_bytes, **overrides).model

    def write(self, stream: BinaryIO) -> Answer:
        """Writes the checkpoint."""
        return _written(stream, self.model)


class PublishedJob(CheckpointJob):
    """A checkpoint in the hub's cache, by its name; nothing is downloaded."""

    def __init__(self, source: str, max_bytes: int, overrides: dict[str, Any]) -> None:
        _go_offline()
        # What a stranger's file names is opened by no other package.
        self.model = load(source, max_bytes=max_bytes, engine="own", **overrides)


class SnapshotJob(CheckpointJob):
    """One snapshot of a model in training."""

    def __init__(self, path: Path, name: str, max_bytes: int) -> None:
        self.model = load_checkpoint(path, name, max_bytes)


class TextJob:
    """The text tower of a checkpoint, which stays for one text after the other.

    Args:
        name, origin, config: as :func:`vitviz.weights.text_tower.tower_of` takes them.
    """

    def __init__(self, name: str, origin: Origin, config: ViTConfig) -> None:
        _go_offline()
        self.tower = tower_of(name, origin, config)

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


def _written(stream: BinaryIO, model: Model) -> Answer:
    write_checkpoint(stream, model)
    return {
        "name": model.name,
        "assumptions": list(model.assumptions),
        "folder": None if model.origin is None else str(model.origin.folder),
    }
