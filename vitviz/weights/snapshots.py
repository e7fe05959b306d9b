"""Snapshots: the states of one model during its training, opened as one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vitviz.errors.arguments import instance
from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import several
from vitviz.weights.model import Model, Snapshots
from vitviz.weights.native import load_checkpoint

FOLDER = "snapshots"
NAME = re.compile(r"step-(\d{1,12})\.safetensors", re.ASCII)


def snapshot_path(folder: Path, step: int) -> Path:
    """The file of the state after so many training steps."""
    return folder / f"step-{step:07d}.safetensors"


def files_by_step(folder: Path) -> dict[int, Path]:
    """The files in a folder that are called as snapshots are, in ascending order; none where it cannot be read."""
    try:
        found = [(named, file) for file in folder.iterdir() if (named := NAME.fullmatch(file.name))]
    except OSError:
        return {}
    return dict(sorted((int(named[1]), file) for named, file in found))


def find_snapshots(folder: Path) -> Snapshots | None:
    """The snapshots in a folder; None where it has fewer than two, or weights of something else."""
    found = files_by_step(folder)
    if len(found) < 2 or any(NAME.fullmatch(file.name) is None for file in folder.glob("*.safetensors")):
        return None
    return Snapshots(found)


def open_snapshots(snapshots: Snapshots, name: str | None = None, max_bytes: int | None = None) -> Model:
    """The last state, which knows of the others; ``name`` and ``max_bytes`` as :func:`load_checkpoint` takes them.

    Raises:
        CheckpointError: it is no checkpoint of vitviz's own, or a damaged one.
        LimitError: the network takes more memory than is allowed or free.
    """
    last = snapshots.steps[-1]
    folder = snapshots.files[last].parent.resolve()
    named = folder.parent.name if folder.name == FOLDER else folder.name
    return replace(load_checkpoint(snapshots.files[last], name or named, max_bytes), snapshots=snapshots, step=last)


def open_snapshot(model: Model, step: int) -> Model:
    """Another state of a model that was opened with its snapshots.

    Raises:
        CheckpointError: there is no such snapshot, or it is damaged or of another run.
        ConfigError: the model is no model.
    """
    return snapshot_of(model, step, load_checkpoint)


def snapshot_of(model: Model, step: int, open_file: Callable[[Path, str], Model]) -> Model:
    """The same, where ``open_file`` opens the file of the state under the name of the model."""
    instance("model", model, Model, "vitviz.load()")
    if model.snapshots is None:
        raise CheckpointError(f"{model.name}: opened without snapshots of its training; expected a folder of them")
    steps = model.snapshots.steps
    if step not in steps:
        known = several(list(map(str, steps)), 20)
        raise CheckpointError(f"{model.name}: no snapshot of training step {step}; expected {known}")
    found = open_file(model.snapshots.files[step], model.name)
    ours, theirs = ((each.network.config, each.preprocessing, each.labels) for each in (model, found))
    if ours != theirs:
        raise CheckpointError(f"{model.snapshots.files[step].name}: of another run than the other snapshots beside it")
    return replace(found, snapshots=model.snapshots, step=step)
