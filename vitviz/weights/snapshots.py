"""Snapshots: states of one model during its training, opened together."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch

from vitviz.errors.arguments import instance, named_arguments
from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import several
from vitviz.weights.model import Model, Snapshots
from vitviz.weights.native import read_native

FOLDER = "snapshots"
NAME = re.compile(r"step-(\d{1,12})\.safetensors", re.ASCII)


def snapshot_path(folder: Path, step: int) -> Path:
    """The file of the state after a number of training steps."""
    return folder / f"step-{step:07d}.safetensors"


def files_by_step(folder: Path) -> dict[int, Path]:
    """Files with names of snapshots by training step, in ascending order; empty if the folder cannot be read."""
    try:
        matches = [(match, file) for file in folder.iterdir() if (match := NAME.fullmatch(file.name))]
    except OSError:
        return {}
    return dict(sorted((int(match[1]), file) for match, file in matches))


def find_snapshots(folder: Path) -> Snapshots | None:
    """The snapshots in a folder; None if it has fewer than two, or other weights."""
    files = files_by_step(folder)
    if len(files) < 2 or any(NAME.fullmatch(file.name) is None for file in folder.glob("*.safetensors")):
        return None
    return Snapshots(files)


def open_snapshots(snapshots: Snapshots, name: str | None = None) -> Model:
    """The last snapshot as a model that lists all; ``name`` as in :func:`read_native`.

    Raises:
        CheckpointError: it is not a checkpoint in vitviz's format, or is damaged.
        LimitError: the network takes more memory than is free.
    """
    last = snapshots.steps[-1]
    folder = snapshots.files[last].parent.resolve()
    folder_name = folder.parent.name if folder.name == FOLDER else folder.name
    model = _open(snapshots.files[last], name or folder_name)
    return replace(model, snapshots=snapshots, step=last)


@named_arguments(CheckpointError)
@torch.inference_mode(False)
def open_snapshot(model: Model, step: int) -> Model:
    """Another snapshot of a model that was opened with its snapshots.

    Raises:
        CheckpointError: there is no such snapshot, or it is damaged or of another run.
        ConfigError: ``model`` is not a :class:`Model`.

    >>> run = vitviz.load("runs/mine")
    >>> run.snapshots.steps, vitviz.open_snapshot(run, 100).step
    ((100, 200), 100)
    """
    instance("model", model, Model, "vitviz.load()")
    if model.snapshots is None:
        raise CheckpointError(f"{model.name}: opened without snapshots of its training; expected a folder of them")
    steps = model.snapshots.steps
    if step not in steps:
        expected = several(list(map(str, steps)), 20)
        raise CheckpointError(f"{model.name}: no snapshot of training step {step!r}; expected {expected}")
    snapshot = _open(model.snapshots.files[step], model.name)
    ours, theirs = ((each.network.config, each.preprocessing, each.labels) for each in (model, snapshot))
    if ours != theirs:
        raise CheckpointError(f"{model.snapshots.files[step].name}: of another run than the other snapshots beside it")
    return replace(snapshot, snapshots=model.snapshots, step=step)


def _open(path: Path, name: str) -> Model:
    # Not before a checkpoint is opened, so that importing vitviz stays light.
    from vitviz.weights.formats.files import open_weights

    return read_native(open_weights(path), name)
