"""A published checkpoint held to the package that it comes from, on real photographs, and to numbers kept beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.parity.case import answer_of_vitviz
from tests.parity.package_answers import answer_of, expected_output, whole_patches
from tests.parity.random_draws import silent
from tests.parity.reference_models import reference_of
from tests.support.example import ASSETS
from tests.support.reading import read_any
from vitviz.errors.kinds import CheckpointError
from vitviz.models.network import Network
from vitviz.models.vit import VisionTransformer
from vitviz.weights.packages import build_from_folder
from vitviz.weights.verify import TOLERANCE, Comparison, attention_bound, compare

VARIABLE = "VITVIZ_PUBLISHED"
"""The environment variable that names the folder of published checkpoints."""
CONFIGURATIONS = ("config.json", "open_clip_config.json")
REFERENCE = "reference.npz"
"""Numbers of another program beside a checkpoint: ``pixels`` and one of :data:`OUTPUTS`."""
# Those of the tables in docs/checked.md.
PHOTOS = tuple(ASSETS / f"{name}.jpg" for name in ("astronaut", "chelsea", "coffee", "rocket"))


def all_tokens(network: Network, pixels: torch.Tensor) -> torch.Tensor:
    """Every token after the final norm, ``"batch token width"``."""
    if not isinstance(network, VisionTransformer):
        return network.module(pixels).last_hidden_state  # type: ignore[attr-defined]
    *_, last = network.stream(pixels)
    return network.norm(last)


OUTPUTS: dict[str, Callable[[Network, torch.Tensor], torch.Tensor]] = {
    "logits": lambda network, pixels: network(pixels),
    "features": lambda network, pixels: network.output(pixels, "features"),
    "hidden": all_tokens,
}
"""By the name of the array in :data:`REFERENCE`, vitviz's own: ``"batch class"``, ``"batch feature"``, all tokens."""


@dataclass(frozen=True)
class Figures:
    """A checkpoint beside its package.

    Args:
        reference: the package's model.
        comparisons: by what was compared, over all photographs; each the one that is furthest beyond its bound, or
            nearest to it.
    """

    reference: str
    comparisons: dict[str, Comparison]

    @property
    def wrong(self) -> list[str]:
        """One sentence for everything that is beyond its bound."""
        return [each.text for each in self.comparisons.values() if not each.exact]


def checkpoints(folder: Path) -> dict[str, Path]:
    """The checkpoints in a folder, at any depth, by their path in it.

    Raises:
        FileNotFoundError: there is no such folder, or no checkpoint in it.
    """
    found = {path.parent for name in CONFIGURATIONS for path in folder.rglob(name)}
    if not found:
        expected = f"expected folders with {' or '.join(CONFIGURATIONS)} in it"
        raise FileNotFoundError(f"{VARIABLE} = {folder}: no published checkpoint found; {expected}")
    return {path.relative_to(folder).as_posix(): path for path in sorted(found)}


def check(folder: Path, photos: Sequence[Path] = PHOTOS) -> Figures:
    """Open a checkpoint, and run it on photographs beside its package, which prepares them by itself.

    Raises:
        CheckpointError: vitviz refuses it, no package can open it, or the kept numbers are none.
    """
    reading = read_any(folder, report=lambda _: None)
    model, network = reading.model, reading.model.network
    with silent():
        built = build_from_folder(reading.files, folder)
        reference = reference_of(built.module, folder)
    found: dict[str, Comparison] = {}
    for photo in photos:
        with Image.open(photo) as opened:
            picture = opened.convert("RGB")
        ours = model.preprocessing.prepare(picture, network.config.patch_height, network.config.patch_width).pixels
        with silent(), torch.inference_mode():
            pixels = reference.preprocess(picture)
            theirs = answer_of(reference, pixels)
            output, weights = answer_of_vitviz(network, ours)
            expected = expected_output(theirs, network, pixels)
        sums = torch.stack([layer.double().sum(-1).flatten() for layer in weights])
        parts = {
            "pixels": compare(f"pixels of {photo.name}", ours, whole_patches(pixels, network.config)),
            "output": compare(f"output for {photo.name}", output, expected),
            "sums": compare(f"sums of attention rows for {photo.name}", sums, torch.ones_like(sums)),
        }
        pairs = enumerate(zip(weights, theirs.attention, strict=bool(theirs.attention)))
        layers = [
            compare(f"attention, layer {layer}", own, other, attention_bound(other)) for layer, (own, other) in pairs
        ]
        if layers:
            parts["attention"] = max(layers, key=lambda each: each.ratio)
        for kind, each in parts.items():
            if kind not in found or each.ratio > found[kind].ratio:
                found[kind] = each
    if (folder / REFERENCE).exists():
        found["kept numbers"] = _kept_numbers(network, folder / REFERENCE)
    return Figures(built.title, found)


def _kept_numbers(network: Network, path: Path) -> Comparison:
    """Numbers of another program, kept beside a checkpoint."""
    with np.load(path) as arrays:
        kept = {name: torch.from_numpy(arrays[name]) for name in arrays}
    outputs = sorted(kept.keys() & OUTPUTS.keys())
    if "pixels" not in kept or len(outputs) != 1:
        expected = f"expected 'pixels' and one of {', '.join(map(repr, OUTPUTS))}"
        raise CheckpointError(f"{path.name}: arrays {sorted(kept)} found; {expected}")
    with torch.inference_mode():
        found = OUTPUTS[outputs[0]](network, kept["pixels"])
    expected = kept[outputs[0]]
    # What rounds is a sum over the whole vector, and so as large as its largest number.
    bound = TOLERANCE * expected.abs().amax(-1, keepdim=True).clamp(min=1)
    return compare(f"{outputs[0]} of {path.name}", found, expected, bound)
