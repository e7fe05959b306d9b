"""Writes three states of the bundled network's training, as snapshots: ``python -m docs.site.stages FOLDER``.

They are the weights with which a run begins, those after 28 epochs, which ``checkpoints/recipe/epoch-28.pt`` holds, and
those that ship. Their folder opens as one model with a slider of training steps.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

import vitviz
from vitviz import Model, VisionTransformer
from vitviz.training.optimise import initialise
from vitviz.weights.snapshots import snapshot_path

AFTER_28_EPOCHS = Path(__file__).resolve().parents[2] / "checkpoints" / "recipe" / "epoch-28.pt"
# The last: all steps of the runs behind the weights that ship.
STEPS_PER_EPOCH, ALL_STEPS, SEED = 128, 16_256, 0


def stages() -> dict[int, Model]:
    """The three states by training step, with the preprocessing of the one that ships."""
    bundled = vitviz.load()
    config = bundled.network.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        first = VisionTransformer(config)
        initialise(first)
    earlier = VisionTransformer(config)
    state = torch.load(AFTER_28_EPOCHS, weights_only=True)
    earlier.load_state_dict(state["averaged"])
    networks = {0: first, state["epoch"] * STEPS_PER_EPOCH: earlier, ALL_STEPS: bundled.network}
    return {
        step: replace(
            bundled,
            name=f"step {step:,}",
            network=network.eval().requires_grad_(False),
            card={"training step": f"{step:,} of {max(networks):,}", "terms": bundled.card["terms"]},
            ood_detector=None,
        )
        for step, network in networks.items()
    }


def write(folder: Path) -> None:
    """Write the three snapshots."""
    folder.mkdir(parents=True, exist_ok=True)
    for step, model in stages().items():
        vitviz.save_checkpoint(snapshot_path(folder, step), model)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
