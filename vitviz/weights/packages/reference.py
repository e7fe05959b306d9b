"""The reference for a checkpoint, computed by its own package: model and preprocessing."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from vitviz.errors.extras import needs
from vitviz.errors.kinds import CheckpointError, VitvizError
from vitviz.errors.messages import quote
from vitviz.models.watched.outputs import is_vector, primary_output
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.modules.sizes import find_image_size

Size = tuple[int, int]


@dataclass(frozen=True, eq=False)
class ReferenceModel:
    """A model of a package, with random weights or from a folder.

    Args:
        module: takes pixels: the model or its vision tower.
        title: the model's class and package, for tables.
        preprocess: the package's own preprocessing of an RGB image: ``"1 channel height width"``.
        projection: what the model around the tower applies to its features; None for nothing.
    """

    module: nn.Module
    title: str
    preprocess: Callable[[Image.Image], torch.Tensor]
    projection: nn.Module | None = None

    @property
    def size(self) -> Size | None:
        """Height and width in pixels of its images; None if it has no such size."""
        return find_image_size(self.module)

    def output(self, result: Any) -> torch.Tensor:
        """The output of the model, ``"batch feature"``, or its last tokens, from the module's result."""
        output = primary_output(result)
        return output if self.projection is None or not is_vector(output) else self.projection(output)


@dataclass(frozen=True)
class Package:
    """A package that checkpoints come from.

    Args:
        name: as in ``import``.
        find_mention: returns how the files beside a checkpoint name the package, such as
            ``"architecture in config.json"``; None if they do not.
        files: names of the configuration and of the weights that its loader reads from a folder.
        check_config: takes a configuration and the name of the checkpoint; returns the one for its loader.
        load: returns the model of a folder in float32, at the trained size or at a height and width in pixels; takes
            patterns of keys that may be surplus, None for all.
    """

    name: str
    find_mention: Callable[[Sidecars], str | None]
    files: tuple[str, str]
    check_config: Callable[[Mapping[str, Any], str], dict[str, Any]]
    load: Callable[[Path, Size | None, Sequence[str] | None], ReferenceModel]

    def config_of(self, sidecars: Sidecars) -> Settings:
        """The configuration that its loader reads."""
        return sidecars.open_clip if self.name == "open_clip" else sidecars.config


def import_package(package: Package, purpose: str) -> None:
    """Import a package.

    Args:
        package: to import.
        purpose: what needs it, as the beginning of the message.

    Raises:
        CheckpointError: it is not installed, or not compatible with other packages.
    """
    try:
        importlib.import_module(package.name)
    # Incompatible packages may raise anything on import.
    except Exception as error:
        raise CheckpointError(f"{needs(purpose, package.name)} ({error})") from None


@contextmanager
def package_errors(name: str, failure: str) -> Iterator[None]:
    """Raise errors of a package as a CheckpointError of one sentence, and restore the state of the process."""
    try:
        with restore_state():
            yield
    except VitvizError:
        raise
    # A package may raise anything.
    except Exception as error:
        first, *more = str(error).strip().splitlines() or [""]
        message = f"{first} {more[0].strip()}" if more and first.endswith(":") else first
        raise CheckpointError(f"{name} {failure} ({type(error).__name__}: {quote(message)[1:-1]})") from None


@contextmanager
def restore_state() -> Iterator[None]:
    """Prevent downloads and warnings, and afterwards restore random numbers and the hub's switch."""
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        constants.HF_HUB_OFFLINE = offline


def as_mode(image: Image.Image, channels: int) -> Image.Image:
    """An RGB image with as many channels as a model takes."""
    return image if channels == 3 else image.convert({1: "L", 4: "RGBA"}[channels])
