"""Snapshots: intermediate states of a run, whose attention the app shows step by step."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.vit import VisionTransformer
from vitviz.weights.model import Model
from vitviz.weights.native import save_checkpoint
from vitviz.weights.snapshots import files_by_step, snapshot_path

MAX_SNAPSHOTS = 100


def snapshot_steps(total: int, count: int) -> frozenset[int]:
    """The steps after which a snapshot is taken: the first, the last, and most between them early, where most changes.

    Args:
        total: number of steps of the run.
        count: number of snapshots; a short run has fewer.

    Raises:
        ConfigError: the count is out of range.
    """
    if not 0 <= count <= MAX_SNAPSHOTS:
        raise ConfigError(f"snapshots = {count}: expected a number from 0 to {MAX_SNAPSHOTS}")
    if count == 1:
        return frozenset({total})
    return frozenset(round(total * (index / (count - 1)) ** 3) for index in range(count))


class Snapshotter:
    """Writes the snapshots of a run in float16, each half as large as its checkpoint.

    Args:
        folder: folder for their files.
        preprocessing, labels: of the model.
        total: number of steps of the run.
        count: number of snapshots.

    Raises:
        ConfigError: the count is out of range.
    """

    def __init__(
        self, folder: Path, preprocessing: Preprocessing, labels: tuple[str, ...], total: int, count: int
    ) -> None:
        self.folder, self.preprocessing, self.labels = folder, preprocessing, labels
        self.total, self.steps = total, snapshot_steps(total, count)

    def refuse_others(self) -> None:
        """Refuse a folder in which a new run's snapshots would be mixed with those of another run.

        Raises:
            CheckpointError: the folder already holds snapshots.
        """
        if files_by_step(self.folder):
            raise CheckpointError(f"{self.folder}: snapshots of another run; remove them, or choose another folder")

    def take(self, network: VisionTransformer, step: int) -> None:
        """Write a snapshot of the network, if the schedule has one after this step."""
        if step not in self.steps:
            return
        self.folder.mkdir(exist_ok=True)
        rounded = copy.deepcopy(network).to("cpu", torch.float16)
        card = {
            "training step": f"{step:,} of {self.total:,}",
            "calibration": "none: a state on the way, rounded to float16",
        }
        model = Model(f"step {step:,}", rounded, self.preprocessing, self.labels, card)
        save_checkpoint(snapshot_path(self.folder, step), model)
