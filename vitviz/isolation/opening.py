"""Open pictures, checkpoints and text towers in children of a :class:`~vitviz.isolation.worker.Worker`.

A child's answers are checked here. The results equal those of the library's own functions.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitviz.errors.kinds import CheckpointError, ConfigError, ImageError
from vitviz.images.colours import ColorProfile
from vitviz.images.geometry import Geometry
from vitviz.images.limits import MAX_PIXELS
from vitviz.images.opening import ImageFacts
from vitviz.images.preprocessing import Fit, PreparedImage, Preprocessing
from vitviz.images.sources import ValueRange
from vitviz.isolation.limits import Limits
from vitviz.isolation.worker import JobConnection, Worker
from vitviz.models.require import require_vit_config
from vitviz.models.targets import Target
from vitviz.weights.model import Model, Origin
from vitviz.weights.native import load_checkpoint
from vitviz.weights.text_tower import TextTower, fetch_tokenizer

GIB = 2**30
# Time limit of a job without one.
UNLIMITED_SECONDS = 1e9
# The library bounds decoding to half a gigabyte; copies and the prepared input come on top.
PICTURE_LIMITS = Limits(memory_bytes=3 * GIB // 2, cpu_seconds=30, wall_seconds=120, answer_bytes=GIB)
# Processor time for opening a text tower, and for each text.
ANSWER_SECONDS = 120.0
# About one picture.
MAX_SENTENCES, MAX_SENTENCE_CHARS = 8, 600
# Niceness of jobs that may take seconds, so that small ones run first.
BACKGROUND_NICENESS = 10


@dataclass(frozen=True, eq=False)
class OpenPicture:
    """A picture that a child has decoded.

    Args:
        width, height: in pixels, upright.
    """

    width: int
    height: int
    _job: JobConnection

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height

    def model_input(
        self, preprocessing: Preprocessing, patch_height: int, patch_width: int, fit: Fit | None, longest_side: int
    ) -> PreparedImage:
        """The result of :meth:`vitviz.Preprocessing.prepare`, on the resized picture. Can be called once.

        Raises:
            ImageError: the job exceeds a limit.
        """
        height, width = preprocessing.input_size(self, patch_height, patch_width, fit)
        shape = (1, len(preprocessing.mean), height, width)
        scale = longest_side / max(self.size)
        resized_width, resized_height = (max(1, round(side * scale)) for side in self.size)
        answer = self._job.call(
            "model_input",
            preprocessing=preprocessing,
            patch_height=patch_height,
            patch_width=patch_width,
            fit=fit,
            longest_side=longest_side,
        )
        count = math.prod(shape)
        with self._job.content() as content:
            if len(content) != 4 * count + 3 * resized_width * resized_height:
                raise self._job.answer_error()
            pixels = torch.from_numpy(np.frombuffer(content, np.float32, count).reshape(shape).copy())
            levels = np.frombuffer(content, np.uint8, offset=4 * count).reshape(resized_height, resized_width, 3).copy()
        try:
            fields = answer["geometry"]
            geometry = Geometry(**{**fields, "box": tuple(map(float, fields["box"]))})
            image = Image.fromarray(levels)
            ImageFacts(_sentences(answer["assumptions"])).keep(image)
            return PreparedImage(image, pixels, geometry)
        except (KeyError, TypeError, ValueError, ConfigError):
            raise self._job.answer_error() from None

    def png(self) -> bytes:
        """The picture as a PNG file.

        Raises:
            ImageError: the job exceeds a limit.
        """
        self._job.call("png")
        with self._job.content() as content:
            return content[:]


@dataclass(frozen=True, eq=False)
class UnopenedPicture:
    """A picture whose header a child has read.

    Args:
        pixels: number of pixels that the header states.
    """

    pixels: int
    _job: JobConnection

    def decode(self, niceness: int = 0) -> OpenPicture:
        """Decode the picture as :func:`vitviz.open_image` does. Can be called once.

        Args:
            niceness: of the child from here on, 0 to 19.

        Raises:
            ImageError: as :func:`vitviz.open_image`, or the job exceeds a limit.
        """
        answer = self._job.call("decode", niceness=niceness)
        width, height = answer.get("width"), answer.get("height")
        if not isinstance(width, int) or not isinstance(height, int):
            raise self._job.answer_error()
        if min(width, height) < 1 or width * height > MAX_PIXELS:
            raise self._job.answer_error()
        return OpenPicture(width, height, self._job)


@contextmanager
def unopened_picture(
    worker: Worker, path: Path, name: str, value_range: ValueRange | None = None, color_profile: ColorProfile = "apply"
) -> Iterator[UnopenedPicture]:
    """A picture whose header is read; the child runs until the context ends.

    Args:
        worker: that starts the child.
        path, name, value_range, color_profile: as for :func:`vitviz.open_image`.

    Raises:
        ImageError: as :func:`vitviz.open_image`, as far as the header tells, or the job exceeds a limit.
    """
    reading = {"value_range": value_range, "color_profile": color_profile}
    arguments = {"path": path.absolute(), "name": name, **reading}
    with worker.job("PictureJob", arguments, PICTURE_LIMITS, ImageError, name) as job:
        pixels = job.call("pixels").get("pixels")
        if not isinstance(pixels, int):
            raise job.answer_error()
        yield UnopenedPicture(pixels, job)


@contextmanager
def open_picture(worker: Worker, path: Path, name: str) -> Iterator[OpenPicture]:
    """A picture, opened as by :func:`vitviz.open_image`; the child runs until the context ends.

    Raises:
        ImageError: as :func:`vitviz.open_image`, or the job exceeds a limit.
    """
    with unopened_picture(worker, path, name) as unopened:
        yield unopened.decode()


def open_checkpoint(worker: Worker, path: Path, max_bytes: int, name: str | None = None, **overrides: Any) -> Model:
    """The model of a file or a folder, as :func:`vitviz.load` returns it.

    Args:
        path, name, overrides: as for :func:`vitviz.weights.read_checkpoint`.
        max_bytes: limit of its weights in memory.

    Raises:
        CheckpointError, LimitError: as :func:`vitviz.weights.read_checkpoint`, or the job exceeds a limit.
    """
    path = path.absolute()
    root = path if path.is_dir() else path.parent
    arguments = {"path": path, "name": name, "max_bytes": max_bytes, "overrides": overrides}
    return _model(worker, "CheckpointJob", arguments, name or path.name, root, max_bytes)


def open_published(worker: Worker, source: str, origin: Origin, max_bytes: int, **overrides: Any) -> Model:
    """The model of a published checkpoint in the hub's cache.

    Args:
        source, overrides: as for :func:`vitviz.load`.
        origin: returned for it by :func:`vitviz.weights.fetch`.
        max_bytes: limit of its weights in memory.

    Raises:
        CheckpointError, LimitError: as :func:`open_checkpoint`.
    """
    model = _model(
        worker,
        "PublishedJob",
        {"source": source, "max_bytes": max_bytes, "overrides": overrides},
        source,
        origin.folder,
        max_bytes,
    )
    return replace(model, origin=origin)


def open_snapshot(worker: Worker, path: Path, name: str, max_bytes: int) -> Model:
    """One snapshot of a model in training.

    Raises:
        CheckpointError, LimitError: as :func:`open_checkpoint`.
    """
    return _model(
        worker,
        "SnapshotJob",
        {"path": path.absolute(), "name": name, "max_bytes": max_bytes},
        name,
        path.parent,
        max_bytes,
    )


class IsolatedTower:
    """The text tower of a checkpoint, in a process that lives as long as this object.

    Args:
        worker: that starts the process.
        model: of the checkpoint.
        max_bytes: limit of the memory of its process.

    Raises:
        CheckpointError, ConfigError: as :func:`vitviz.weights.text_tower.open_text_tower`.
    """

    def __init__(self, worker: Worker, model: Model, max_bytes: int) -> None:
        origin, config = model.origin, require_vit_config(model.network.config, f"texts for {model.name}")
        if origin is not None:
            fetch_tokenizer(origin)
            # The working folder of the other process may differ.
            origin = replace(origin, folder=origin.folder.absolute())
        limits = Limits(
            # Libraries and mapped weights take address space, but no private memory.
            2 * max_bytes + 2 * GIB,
            cpu_seconds=3600,
            wall_seconds=UNLIMITED_SECONDS,
            answer_bytes=1,
            private_bytes=max_bytes,
            answer_seconds=ANSWER_SECONDS,
        )
        arguments = {"name": model.name, "origin": origin, "config": config}
        stack = ExitStack()
        self._job = stack.enter_context(worker.job("TextJob", arguments, limits, CheckpointError, model.name))
        self._width, self._lock = config.features, Lock()
        self._end = weakref.finalize(self, stack.close)
        logit = self._job.call("logit")
        self._tower = TextTower(self._features, _number(self._job, logit, "scale"), _number(self._job, logit, "bias"))

    def target(self, text: str) -> Target:
        """See :meth:`vitviz.weights.text_tower.TextTower.target`."""
        return self._tower.target(text)

    def close(self) -> None:
        """End the process."""
        self._end()

    def _features(self, text: str) -> torch.Tensor:
        with self._lock:
            features = self._job.call("features", text=text).get("features")
        if not isinstance(features, list) or len(features) != self._width or not all(map(_is_number, features)):
            raise self._job.answer_error()
        return torch.tensor(features, dtype=torch.float32)


def _number(job: JobConnection, answer: dict[str, Any], name: str) -> float:
    value = answer.get(name)
    if not _is_number(value):
        raise job.answer_error()
    return float(str(value))


def _sentences(value: object) -> tuple[str, ...]:
    """The sentences of a child, if they are few, short and in one line each."""
    if not isinstance(value, list) or len(value) > MAX_SENTENCES:
        raise ValueError
    if not all(isinstance(each, str) and len(each) <= MAX_SENTENCE_CHARS and each.isprintable() for each in value):
        raise ValueError
    return tuple(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _model(worker: Worker, job_name: str, arguments: dict[str, Any], name: str, root: Path, max_bytes: int) -> Model:
    # Twice the weights: the network, and a tensor as it is in the file. The rest is for the objects of a pickle.
    limits = Limits(2 * max_bytes + GIB, 300, 900, answer_bytes=max_bytes + 2**26, niceness=BACKGROUND_NICENESS)
    with worker.job(job_name, arguments, limits, CheckpointError, name) as job:
        answer = job.call("write")
        model_name, assumptions, folder = (answer.get(field) for field in ("name", "assumptions", "folder"))
        if not isinstance(model_name, str) or not isinstance(assumptions, list):
            raise job.answer_error()
        model = load_checkpoint(job.path(), model_name)
        # The text tower is opened from this folder, so a child must not name one outside of the checkpoint's.
        is_inside = isinstance(folder, str) and Path(folder).is_relative_to(root)
        origin = Origin(Path(str(folder))) if is_inside else None
        return replace(model, origin=origin, assumptions=tuple(map(str, assumptions)))
