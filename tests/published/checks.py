"""A published checkpoint held to the package that it comes from, on real photographs, and to numbers kept beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tests.parity.package_answers import answer_of, expected_output
from tests.support.example import ASSETS
from tests.support.reading import read_checkpoint
from vitviz.errors.kinds import CheckpointError
from vitviz.images.opening import open_image
from vitviz.models.vit import VisionTransformer
from vitviz.weights.packages import ReferenceModel, find_package, open_reference
from vitviz.weights.packages.reference import package_errors
from vitviz.weights.read import Reading
from vitviz.weights.verify import (
    TOLERANCE,
    Comparison,
    attention_bound,
    compare,
    whole_patches,
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
    package = find_package(reading.sidecars)
    assert package is not None, "a folder with a configuration"
    reference = open_reference(package, folder)
    found: dict[str, Comparison] = {}
    for photo in photos:
        with package_errors(package.name, f"cannot run on {photo.name}"), torch.inference_mode():
            compared = _beside(reading, reference, photo)
        for what, each in compared.items():
            if what not in found or each.ratio > found[what].ratio:
                found[what] = each
    if (folder / REFERENCE).exists():
        found["kept numbers"] = _kept_numbers(reading.model.network, folder / REFERENCE)
    return Figures(reference.title, found)


def _beside(reading: Reading, reference: ReferenceModel, photo: Path) -> dict[str, Comparison]:
    """Pixels, output, attention and the sums of its rows, of one photograph."""
    model, network = reading.model, reading.model.network
    image, config = open_image(photo), network.config
    ours = model.preprocessing.prepare(image, config.patch_height, config.patch_width).pixels
    theirs = reference.preprocess(image)
    answer = answer_of(reference, theirs)
    output, weights = network(ours, need_weights=True)
    found = {
        "pixels": compare(f"pixels of {photo.name}", ours, whole_patches(theirs, config)),
        "output": compare(f"output for {photo.name}", output, expected_output(answer, network, ours)),
    }
    if answer.attention:
        pairs = zip(weights, answer.attention, strict=True)
        what = f"attention for {photo.name}, layer {{}}"
        layers = [compare(what.format(layer), *pair, attention_bound(pair[1])) for layer, pair in enumerate(pairs)]
        found["attention"] = max(layers, key=lambda each: each.ratio)
    sums = torch.stack([layer.double().sum(-1).flatten() for layer in weights])
    found["rows"] = compare(f"sums of attention rows for {photo.name}", sums, torch.ones_like(sums))
    return found


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
