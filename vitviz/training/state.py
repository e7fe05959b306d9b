"""The state of a run on disk: one file resumes it exactly, and a compact one carries its weights to another run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitviz.errors.kinds import CheckpointError
from vitviz.models.vit import VisionTransformer
from vitviz.system.atomic import atomic_write
from vitviz.training.config import TrainingConfig

STATE, COMPACT = "state.pt", "compact.pt"
# The settings that determine the network.
NETWORK = "image_size", "patch_size", "width", "depth", "heads", "mlp_ratio", "register_tokens"


@dataclass
class Run:
    """A training run between two epochs; ``feature_head`` takes the network's features to its teacher's."""

    config: TrainingConfig
    images: dict[str, Any]
    network: VisionTransformer
    averaged: VisionTransformer
    optimisers: list[torch.optim.Optimizer]
    feature_head: nn.Linear | None = None
    soft_labels: str | None = None
    epoch: int = 0

    def save(self, path: Path) -> None:
        """Write everything that a resume needs, atomically."""
        _write(
            path,
            {
                **self._header(),
                "network": self.network.state_dict(),
                "averaged": self.averaged.state_dict(),
                "feature head": None if self.feature_head is None else self.feature_head.state_dict(),
                "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            },
        )

    def save_compact(self, path: Path) -> None:
        """Write the averaged weights in bfloat16, a tenth of the size of :meth:`save`, for :meth:`start_from`."""
        _write(path, {**self._header(), "averaged": _rounded(self.averaged)})

    def _header(self) -> dict[str, Any]:
        return {
            "config": asdict(self.config),
            "images": self.images,
            "soft labels": self.soft_labels,
            "epoch": self.epoch,
        }

    def resume(self, path: Path) -> None:
        """Continue from what :meth:`save` wrote.

        Raises:
            CheckpointError: the file is damaged, or belongs to a run with another configuration or other images.
        """
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
            current = {**_settings(asdict(self.config)), **self.images, "soft labels": self.soft_labels}
            # Settings that are newer than the state were at their defaults.
            config = {**_settings(asdict(TrainingConfig())), **_settings(state["config"])}
            before = {**config, **state["images"], "soft labels": state.get("soft labels")}
            changed = [
                f"{key} was {before.get(key)}, now {current[key]}" for key in current if before.get(key) != current[key]
            ]
            if changed:
                raise CheckpointError(f"{path}: belongs to another run ({'; '.join(changed)}); choose another folder")
            self.network.load_state_dict(state["network"])
            self.averaged.load_state_dict(state["averaged"])
            if self.feature_head is not None:
                self.feature_head.load_state_dict(state["feature head"])
            for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
                optimiser.load_state_dict(saved)
            self.epoch = int(state["epoch"])
        except CheckpointError:
            raise
        # torch raises many kinds of error for damaged files, most with long advice.
        except Exception as error:
            raise CheckpointError(
                f"{path}: damaged, or not written by `vitviz train` ({type(error).__name__}); remove it to start afresh"
            ) from error

    def start_from(self, path: Path) -> None:
        """Continue from the weights and the epoch that :meth:`save_compact` wrote.

        The optimisers and the feature head start anew.

        The network and the images must be the same; other settings, such as the number of epochs, may differ.

        Raises:
            CheckpointError: the file is missing or damaged, belongs to another network or other images, or its epoch is
                beyond the last one of this run.
        """
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
            images, epoch, averaged = state["images"], int(state["epoch"]), state["averaged"]
            before = {key: state["config"].get(key) for key in NETWORK}
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such file; expected the {COMPACT} of a run") from None
        # torch raises many kinds of error for damaged files, most with long advice.
        except Exception as error:
            raise CheckpointError(
                f"{path}: damaged, or no {COMPACT} of `vitviz train` ({type(error).__name__})"
            ) from error
        changed = [
            f"{key} was {images.get(key)}, now {current}"
            for key, current in self.images.items()
            if images.get(key) != current
        ]
        if changed:
            raise CheckpointError(f"{path}: belongs to other images ({'; '.join(changed)})")
        if epoch > self.config.epochs:
            raise CheckpointError(f"{path}: epoch {epoch} of a run that is to have {self.config.epochs}; expected less")
        try:
            for network in (self.network, self.averaged):
                network.load_state_dict(averaged)
        except (RuntimeError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path}: the weights of another network ({before}); expected that of this run"
            ) from error
        self.epoch = epoch


def _rounded(network: VisionTransformer) -> dict[str, torch.Tensor]:
    return {name: tensor.to("cpu", torch.bfloat16) for name, tensor in network.state_dict().items()}


def _write(path: Path, state: dict[str, Any]) -> None:
    with atomic_write(path) as stream:
        torch.save(state, stream)


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as plain values, with the fields of its augmentation beside its own."""
    flat = {**config, **config["augmentation"]}
    return {name: value for name, value in flat.items() if name != "augmentation"}
