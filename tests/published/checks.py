"""A published checkpoint held to the package that it comes from, on real photographs, and to numbers kept beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tests.support.example import ASSETS
from tests.support.reading import read_checkpoint
from vitviz.errors.kinds import CheckpointError
from vitviz.images.opening import open_image
from vitviz.models.vit import VisionTransformer
from vitviz.weights.model import Model
from vitviz.weights.verify import (
    TOLERANCE,
    Comparison,
    compare,
    verify,
)

VARIABLE = "VITVIZ_PUBLISHED"
"""The environment variable that names the folder of published checkpoints."""
CONFIGURATIONS = ("config.json", "open_clip_config.json")
REFERENCE = "reference.npz"
"""Numbers of another program beside a checkpoint: ``pixels`` and one of :data:`OUTPUTS`."""
# Those of the tables in docs/checked.md.
PHOTOS = tuple(ASSETS / f"{name}.jpg" for name in ("astronaut", "chelsea", "coffee", "rocket"))


def all_tokens(network: VisionTransformer, pixels: torch.Tensor) -> torch.Tensor:
    """Every token after the final norm, ``"batch token width"``."""
    *_, last = network.stream(pixels)
    return network.norm(last)


OUTPUTS: dict[str, Callable[[VisionTransformer, torch.Tensor], torch.Tensor]] = {
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
        CheckpointError: vitviz refuses it, no package can open, prepare or run it, or the kept numbers are none.
    """
    reading = read_checkpoint(folder)
    found: dict[str, Comparison] = {}
    for photo in photos:
        verification = verify(reading, photo)
        if verification.not_compared:
            raise CheckpointError(f"{photo.name}: {', '.join(verification.not_compared)}")
        for each in (*verification.comparisons, _row_sums(reading.model, photo)):
            kind = each.quantity.split()[0].rstrip(",")
            if kind not in found or each.ratio > found[kind].ratio:
                found[kind] = each
    if (folder / REFERENCE).exists():
        found["kept numbers"] = _kept_numbers(reading.model.network, folder / REFERENCE)
    return Figures(verification.reference, found)


def _row_sums(model: Model, photo: Path) -> Comparison:
    """The sums of all rows of attention for a photograph, which must be 1."""
    config = model.network.config
    pixels = model.preprocessing.prepare(open_image(photo), config.patch_height, config.patch_width).pixels
    with torch.inference_mode():
        _, weights = model.network(pixels, need_weights=True)
    sums = torch.stack([layer.double().sum(-1).flatten() for layer in weights])
    return compare(f"sums of attention rows for {photo.name}", sums, torch.ones_like(sums))


def _kept_numbers(network: VisionTransformer, path: Path) -> Comparison:
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
