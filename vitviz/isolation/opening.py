"""Pictures, checkpoints and text towers, opened by a :class:`~vitviz.isolation.worker.Worker`.

What a child answers is checked here, and then is what the library itself would have made.
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
from vitviz.images.geometry import Geometry
from vitviz.images.opening import MAX_PIXELS
from vitviz.images.preprocessing import PreparedImage, Preprocessing
from vitviz.isolation.limits import Limits
from vitviz.isolation.worker import Conversation, Worker
from vitviz.models.own import own_config
from vitviz.models.targets import Target
from vitviz.weights.model import Model, Origin
from vitviz.weights.native import load_checkpoint
from vitviz.weights.text_tower import TextTower, fetch_words

GIB = 2**30
# Time limit in seconds of a job without an end.
ALWAYS = 1e9
# The library bounds decoding to half a gigabyte; copies and what a picture becomes come on top.
PICTURE = Limits(memory_bytes=3 * GIB // 2, cpu_seconds=30, wall_seconds=120, answer_bytes=GIB)
# Of a processor, for a text tower to open, and to read a text.
ANSWER_SECONDS = 120.0
# How far a job that may take seconds gives way to those who only look at a picture.
GIVING_WAY = 10


@dataclass(frozen=True, eq=False)
class OpenPicture:
    """A picture that a child holds.

    Args:
        width, height: in pixels, upright.
    """

    width: int
    height: int
    _job: Conversation

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height

    def prepare(
        self, preprocessing: Preprocessing, patch_height: int, patch_width: int, fit: str | None, longest_side: int
    ) -> PreparedImage:
        """What :meth:`vitviz.Preprocessing.prepare` gives, on the picture at another size; once.

        Raises:
            ImageError: it takes more than it may.
        """
        height, width = preprocessing.input_size(self, patch_height, patch_width, fit)
        shape = (1, len(preprocessing.mean), height, width)
        scale = longest_side / max(self.size)
        shown_width, shown_height = (max(1, round(side * scale)) for side in self.size)
        answer = self._job.ask(
            "prepare",
            preprocessing=preprocessing,
            patch_height=patch_height,
            patch_width=patch_width,
            fit=fit,
            longest_side=longest_side,
        )
        count = math.prod(shape)
        with self._job.content() as content:
            if len(content) != 4 * count + 3 * shown_width * shown_height:
                raise self._job.broken()
            pixels = torch.from_numpy(np.frombuffer(content, np.float32, count).reshape(shape).copy())
            levels = np.frombuffer(content, np.uint8, offset=4 * count).reshape(shown_height, shown_width, 3).copy()
        try:
            parts = answer["geometry"]
            geometry = Geometry(**{**parts, "box": tuple(map(float, parts["box"]))})
            return PreparedImage(Image.fromarray(levels), pixels, geometry)
        except (KeyError, TypeError, ValueError, ConfigError):
            raise self._job.broken() from None

    def png(self) -> bytes:
        """The picture as a PNG file.

        Raises:
            ImageError: it takes more than it may.
        """
        self._job.ask("png")
        with self._job.content() as content:
            return content[:]


@dataclass(frozen=True, eq=False)
class UnopenedPicture:
    """A picture of which a child has read the header.

    Args:
        pixels: that the header says it has.
    """

    pixels: int
    _job: Conversation

    def decode(self, niceness: int = 0) -> OpenPicture:
        """The picture, as :func:`vitviz.open_image` opens it; once.

        Args:
            niceness: how far this gives way to other processes from now on, 0 to 19.

        Raises:
            ImageError: as that, or it takes more than it may.
        """
        answer = self._job.ask("decode", niceness=niceness)
        width, height = answer.get("width"), answer.get("height")
        if not isinstance(width, int) or not isinstance(height, int):
            raise self._job.broken()
        if min(width, height) < 1 or width * height > MAX_PIXELS:
            raise self._job.broken()
        return OpenPicture(width, height, self._job)


@contextmanager
def unopened_picture(worker: Worker, path: Path, name: str) -> Iterator[UnopenedPicture]:
    """A picture whose header is read, as long as the context lasts.

    Raises:
        ImageError: as :func:`vitviz.open_image`, where the header says so already, or it takes more than it may.
    """
    arguments = {"path": path.absolute(), "name": name}
    with worker.job("PictureJob", arguments, PICTURE, ImageError, name) as job:
        pixels = job.ask("pixels").get("pixels")
        if not isinstance(pixels, int):
            raise job.broken()
        yield UnopenedPicture(pixels, job)


@contextmanager
def picture(worker: Worker, path: Path, name: str) -> Iterator[OpenPicture]:
    """A picture, as :func:`vitviz.open_image` opens it.

    Raises:
        ImageError: as that, or it takes more than it may.
    """
    with unopened_picture(worker, path, name) as unopened:
        yield unopened.decode()


def checkpoint(worker: Worker, path: Path, max_bytes: int, name: str | None = None, **overrides: Any) -> Model:
    """The model that :func:`vitviz.load` makes of a file or a folder.

    Args:
        path, name, overrides: as :func:`vitviz.weights.read_checkpoint` takes them.
        max_bytes: most that its weights may take.

    Raises:
        CheckpointError, LimitError: as that, or it takes more than it may.
    """
    path = path.absolute()
    root = path if path.is_dir() else path.parent
    arguments = {"path": path, "name": name, "max_bytes": max_bytes, "overrides": overrides}
    return _model(worker, "CheckpointJob", arguments, name or path.name, root, max_bytes)


def published(worker: Worker, source: str, origin: Origin, max_bytes: int, **overrides: Any) -> Model:
    """A checkpoint that stands in the hub's cache, by its name.

    Args:
        source, overrides: as :func:`vitviz.load` takes them.
        origin: what :func:`vitviz.weights.fetch` gave for it.
        max_bytes: most that its weights may take.

    Raises:
        CheckpointError, LimitError: as :func:`checkpoint`.
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


def snapshot(worker: Worker, path: Path, name: str, max_bytes: int) -> Model:
    """One state of a model in training.

    Raises:
        CheckpointError, LimitError: as :func:`checkpoint`.
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
    """The text tower of a checkpoint, in a process that lives as long as this.

    Args:
        worker: that starts it.
        model: whose texts it reads.
        max_bytes: most memory that its process may take.

    Raises:
        CheckpointError, ConfigError: as :func:`vitviz.weights.text_tower.open_text_tower`.
    """

    def __init__(self, worker: Worker, model: Model, max_bytes: int) -> None:
        origin, config = model.origin, own_config(model.network.config, f"texts for {model.name}")
        if origin is not None:
            fetch_words(origin)
            # The other process may stand in another folder.
            origin = replace(origin, folder=origin.folder.absolute())
        limits = Limits(
            # Addresses of libraries and of the files of weights are no memory of its own.
            2 * max_bytes + 2 * GIB,
            cpu_seconds=3600,
            wall_seconds=ALWAYS,
            answer_bytes=1,
            private_bytes=max_bytes,
            answer_seconds=ANSWER_SECONDS,
        )
        arguments = {"name": model.name, "origin": origin, "config": config}
        stack = ExitStack()
        self._job = stack.enter_context(worker.job("TextJob", arguments, limits, CheckpointError, model.name))
        self._width, self._lock = config.features, Lock()
        self._end = weakref.finalize(self, stack.close)
        logit = self._job.ask("logit")
        self._tower = TextTower(self._features, _number(self._job, logit, "scale"), _number(self._job, logit, "bias"))

    def target(self, text: str) -> Target:
        """As :meth:`vitviz.weights.text_tower.TextTower.target`."""
        return self._tower.target(text)

    def close(self) -> None:
        """End the process."""
        self._end()

    def _features(self, text: str) -> torch.Tensor:
        with self._lock:
            found = self._job.ask("features", text=text).get("features")
        if not isinstance(found, list) or len(found) != self._width or not all(map(_is_number, found)):
            raise self._job.broken()
        return torch.tensor(found)


def _number(job: Conversation, answer: dict[str, Any], name: str) -> float:
    value = answer.get(name)
    if not _is_number(value):
        raise job.broken()
    return float(str(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _model(worker: Worker, job: str, arguments: dict[str, Any], name: str, root: Path, max_bytes: int) -> Model:
    # The network, one tensor as it is in the file, and what a pickle becomes.
    limits = Limits(2 * max_bytes + GIB, 300, 900, answer_bytes=max_bytes + 2**26, niceness=GIVING_WAY)
    with worker.job(job, arguments, limits, CheckpointError, name) as under_way:
        answer = under_way.ask("write")
        called, assumptions, folder = (answer.get(part) for part in ("name", "assumptions", "folder"))
        if not isinstance(called, str) or not isinstance(assumptions, list):
            raise under_way.broken()
        model = load_checkpoint(under_way.path(), called)
        # Its text tower is looked for there.
        inside = isinstance(folder, str) and Path(folder).is_relative_to(root)
        origin = Origin(Path(str(folder))) if inside else None
        return replace(model, origin=origin, assumptions=tuple(map(str, assumptions)))
