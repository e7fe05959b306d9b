"""A checkpoint as the package computes it that wrote it: its model, its preprocessing, its attention weights."""

from __future__ import annotations

import importlib
import logging
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import nn

from vitviz.errors.kinds import CheckpointError, VitvizError
from vitviz.errors.messages import quote
from vitviz.weights.metadata.sidecars import Sidecars

Size = tuple[int, int]
EXTRA = "verify"


@dataclass(frozen=True, eq=False)
class Answer:
    """What a package's model gives for pixels.

    Args:
        output: logits or features, ``"batch feature"``; None for a model that gives nothing but its last tokens.
        attention: the weights of every layer, ``"batch head query key"``; empty where the package does not give them.
        tokens: of the last layer, ``"batch token width"``, for a model without an output.
    """

    output: torch.Tensor | None
    attention: tuple[torch.Tensor, ...]
    tokens: torch.Tensor | None = None


class ReferenceModel(Protocol):
    """A model of a package, with random weights or from a folder."""

    @property
    def title(self) -> str:
        """Its class, as a table names it."""

    @property
    def module(self) -> nn.Module:
        """What takes pixels: the model, or the part of it that sees."""

    @property
    def size(self) -> Size | None:
        """Height and width in pixels that it was made for; None where it has no such size."""

    def prepare(self, image: Image.Image) -> torch.Tensor:
        """The package's own preprocessing of an RGB image: ``"1 channel height width"``."""

    def answer(self, pixels: torch.Tensor) -> Answer:
        """The package's own forward pass of ``"batch channel height width"``."""


@dataclass(frozen=True)
class Package:
    """A package that checkpoints come from.

    Args:
        name: as it is imported.
        distribution: as it is installed.
        names: the file that names it and what that says, such as ``"architecture in config.json"``; None where no file
            beside the checkpoint does.
        open: its own loader: the folder and the height and width in pixels, None for the trained ones.
        extra: of vitviz, that installs it.
        files: what its loader looks for in a folder: the configuration, and the weights.
        checked: the configuration as the loader may have it, which then reads nothing but the folder's two files, runs
            nothing of theirs and leaves no weight random.
        build: the model of a folder without weights, made on whatever device is torch's default.
        load: the model of a folder as it is captured; takes the patterns of keys that are left out.
    """

    name: str
    distribution: str
    names: Callable[[Sidecars], str | None]
    open: Callable[[Path, Size | None], ReferenceModel]
    extra: str
    files: tuple[str, str]
    checked: Callable[[Mapping[str, Any], str], dict[str, Any]]
    build: Callable[[Path], nn.Module]
    load: Callable[[Path, Sequence[str]], ReferenceModel]


def find_package(packages: Sequence[Package], sidecars: Sidecars, name: str) -> Package:
    """The package that the files beside a checkpoint name.

    Raises:
        CheckpointError: they name none.
    """
    for package in packages:
        if package.names(sidecars) is not None:
            return package
    raise CheckpointError(
        f"{name}: nothing to verify against: no file beside it names a package; expected a folder with timm's or "
        "transformers' config.json or with open_clip_config.json"
    )


def open_reference(package: Package, folder: Path, size: Size | None = None) -> ReferenceModel:
    """The package's model of a folder, in float32, opened from its files alone.

    Raises:
        CheckpointError: the package is not installed, or cannot open the folder.
    """
    import_package(package, "verifying", EXTRA)
    with package_errors(package.name, f"cannot open {folder.name}"):
        return package.open(folder, size)


def import_package(package: Package, what: str, extra: str) -> None:
    """Import it.

    Args:
        package: that is meant.
        what: needs it, as the message begins.
        extra: that installs it.

    Raises:
        CheckpointError: it is not installed, or does not fit what is.
    """
    try:
        importlib.import_module(package.name)
    # A package whose parts do not fit together fails in ways of its own.
    except Exception as error:
        raise CheckpointError(
            f"{what} needs {package.name} ({error}): pip install 'vitviz[{extra}]' or '{package.distribution}'"
        ) from None


@contextmanager
def package_errors(name: str, what: str) -> Iterator[None]:
    """What a package raises, in one sentence; its state and the process's are as they were before."""
    try:
        with undisturbed():
            yield
    except VitvizError:
        raise
    # A package may raise anything.
    except Exception as error:
        first, *more = str(error).strip().splitlines() or [""]
        message = f"{first} {more[0].strip()}" if more and first.endswith(":") else first
        raise CheckpointError(f"{name} {what} ({type(error).__name__}: {quote(message)[1:-1]})") from None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Random numbers, warnings, logging and the hub's switch are afterwards as they were; nothing is downloaded."""
    from huggingface_hub import constants

    states = random.getstate(), np.random.get_state()
    root = logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, root.manager.disable
    offline, dtype = constants.HF_HUB_OFFLINE, torch.get_default_dtype()
    logging.disable(logging.CRITICAL)
    constants.HF_HUB_OFFLINE = True
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        logging.disable(disabled)
        # logging.warning() gives the root logger a handler where it has none.
        root.handlers[:] = handlers
        root.setLevel(level)
        constants.HF_HUB_OFFLINE = offline
        torch.set_default_dtype(dtype)


@contextmanager
def collected(modules: Sequence[nn.Module], pick: Callable[[Any], torch.Tensor | None]) -> Iterator[list[torch.Tensor]]:
    """What modules give while they run, picked from their outputs; None is left out."""
    found: list[torch.Tensor] = []

    def keep(module: nn.Module, arguments: Any, output: Any) -> None:
        picked = pick(output)
        if picked is not None:
            found.append(picked)

    hooks = [module.register_forward_hook(keep) for module in modules]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def as_mode(image: Image.Image, channels: int) -> Image.Image:
    """An RGB image with as many channels as a model takes."""
    return image if channels == 3 else image.convert({1: "L", 4: "RGBA"}[channels])
