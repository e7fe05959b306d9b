"""States of a run that are kept on the way, so that its attention can be watched from the first step to the last."""

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
    """After which steps a state is kept: first and last among them, dense at first, where most changes.

    Args:
        total: steps of the run.
        count: how many are wanted; of a short run fewer are kept.

    Raises:
        ConfigError: the count is out of range.
    """
    if not 0 <= count <= MAX_SNAPSHOTS:
        raise ConfigError(f"snapshots = {count}: expected a number from 0 to {MAX_SNAPSHOTS}")
    if count == 1:
        return frozenset({total})
    return frozenset(round(total * (index / (count - 1)) ** 3) for index in range(count))


class Snapshotter:
    """Writes the snapshots of a run, each half as large as its checkpoint.

    Args:
        folder: for their files.
        preprocessing, labels: of the model.
        total: steps of the run.
        count: how many are wanted.

    Raises:
        ConfigError: the count is out of range.
    """

    def __init__(
        self, folder: Path, preprocessing: Preprocessing, labels: tuple[str, ...], total: int, count: int
    ) -> None:
        self.folder, self.preprocessing, self.labels = folder, preprocessing, labels
        self.total, self.steps = total, snapshot_steps(total, count)

    def refuse_others(self) -> None:
        """To be called by a run that is new.

        Raises:
            CheckpointError: the folder has snapshots already, which would be mixed with its own.
        """
        if files_by_step(self.folder):
            raise CheckpointError(f"{self.folder}: snapshots of another run; remove them, or choose another folder")

    def take(self, network: VisionTransformer, step: int) -> None:
        """Keep the state after a step, if that step has a snapshot."""
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
