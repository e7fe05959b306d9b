"""Writes states of the bundled network's training, as snapshots: ``python -m docs.site.stages FOLDER``.

They are the weights with which its run began, those after some epochs, and those that ship. Their folder opens as one
model with a slider of training steps. ``checkpoints/recipe/stages.safetensors.xz`` holds how each state differs from
the next one, in whole multiples of a unit for each tensor. ``python -m docs.site.stages --pack STATE...`` writes it
from the ``compact.pt`` of a run after several epochs.
"""

from __future__ import annotations

import argparse
import copy
import lzma
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load, save

import vitviz
from vitviz import Model, VisionTransformer
from vitviz.system.atomic import atomic_write
from vitviz.weights.snapshots import snapshot_path

DIFFERENCES = Path(__file__).resolve().parents[2] / "checkpoints" / "recipe" / "stages.safetensors.xz"
# Of the run whose end ships.
BATCH_SIZE, ALL_STEPS = 256, 5088
# The unit of a tensor, in standard deviations of its values: of matrices, and of the few other values.
UNIT, FINE_UNIT = 0.22, 0.01
# No context of other bytes: the differences are independent.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 0, "pb": 0}]

Weights = dict[str, torch.Tensor]


def stages() -> dict[int, Model]:
    """The states by training step, with the preprocessing of the one that ships."""
    bundled = vitviz.load()
    networks = {ALL_STEPS: bundled.network}
    differences = load(lzma.decompress(DIFFERENCES.read_bytes()))
    weights = bundled.network.state_dict()
    for step in sorted({int(name.partition(".")[0]) for name in differences}, reverse=True):
        weights = {name: _moved(tensor, differences, f"{step}.{name}") for name, tensor in weights.items()}
        networks[step] = VisionTransformer(bundled.network.config)
        networks[step].load_state_dict(weights)
    return {
        step: replace(
            bundled,
            name=f"step {step:,}",
            network=network.eval().requires_grad_(False),
            card={"training step": f"{step:,} of {ALL_STEPS:,}", "terms": bundled.card["terms"]},
        )
        for step, network in sorted(networks.items())
    }


def _moved(tensor: torch.Tensor, differences: Weights, name: str) -> torch.Tensor:
    """The tensor of a state, from that of the next one."""
    return tensor + differences[name] * differences[f"{name}.unit"]


def pack(paths: list[Path]) -> None:
    """Write how the states of a run differ, each from the next one, and the last from the network that ships."""
    weights = vitviz.load().network.state_dict()
    differences: Weights = {}
    for path in sorted(paths, key=lambda path: _state(path)[0], reverse=True):
        step, target = _state(path)
        for name, tensor in weights.items():
            difference = target[name].float() - tensor
            unit = (UNIT if tensor.ndim > 1 else FINE_UNIT) * tensor.std()
            # The largest difference is 127 units at most.
            unit = differences[f"{step}.{name}.unit"] = torch.maximum(unit, difference.abs().amax() / 127)
            differences[f"{step}.{name}"] = (difference / unit).round().to(torch.int8)
        weights = {name: _moved(tensor, differences, f"{step}.{name}") for name, tensor in weights.items()}
    with atomic_write(DIFFERENCES) as stream:
        stream.write(lzma.compress(save(differences), filters=FILTERS))


def _state(path: Path) -> tuple[int, Weights]:
    """The training step and the weights of a state."""
    state = torch.load(path, weights_only=True, map_location="cpu")
    return state["epoch"] * state["config"]["images_per_epoch"] // BATCH_SIZE, state["averaged"]


def write(folder: Path) -> None:
    """Write the snapshots, in bfloat16 as the weights that ship."""
    folder.mkdir(parents=True, exist_ok=True)
    for step, model in stages().items():
        rounded = replace(model, network=copy.deepcopy(model.network).to(torch.bfloat16))
        vitviz.save_checkpoint(snapshot_path(folder, step), rounded)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER")
    parser.add_argument("--pack", type=Path, nargs="+", metavar="STATE")
    options = parser.parse_args()
    if not (options.pack or options.folder):
        parser.error("expected a FOLDER to write to, or --pack STATE...")
    if options.pack:
        pack(options.pack)
    if options.folder:
        write(options.folder)
