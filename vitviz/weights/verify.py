"""Compares vitviz with the package that a checkpoint comes from: pixels, outputs and attention weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import several
from vitviz.images.callable_preprocessing import CallablePreprocessing
from vitviz.images.opening import open_image
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.network import Network
from vitviz.weights.model import Model
from vitviz.weights.modules.as_model import load_module
from vitviz.weights.packages import Built, build_from_folder, building
from vitviz.weights.read import Reading

TOLERANCE = 1e-5
"""Allowed difference in float32, relative to the absolute reference, or to 1 if that is smaller."""
PHOTO = "chelsea.jpg"
"""The bundled photograph, the default image."""
SEED = 0
NOISE_IMAGES = 2
SAME_MODEL = "the model is the package's own, watched; each call is verified against what it computes"


@dataclass(frozen=True)
class Comparison:
    """The largest difference of one quantity that both networks computed.

    Args:
        quantity: its name, such as ``"output for noise"``.
        difference: the absolute difference at the worst element; infinite if shapes or values cannot be compared.
        bound: the allowed difference at that element.
        exact: whether every difference is within its bound.
        note: replaces the numbers in texts, such as two different shapes.
    """

    quantity: str
    difference: float
    bound: float
    exact: bool
    note: str = ""

    @property
    def ratio(self) -> float:
        """The difference divided by its bound."""
        return self.difference / self.bound

    @property
    def text(self) -> str:
        """The comparison in one line."""
        return f"{self.quantity} {self.note or f'differs by {self.difference:.2g} (allowed {self.bound:.1g})'}"


@dataclass(frozen=True)
class Verification:
    """A comparison of a checkpoint with the package that it comes from.

    Args:
        name: of the checkpoint.
        reference: the package's model.
        comparisons: of pixels, outputs and attention weights.
        not_compared: quantities that could not be compared, with the reason.
    """

    name: str
    reference: str
    comparisons: tuple[Comparison, ...]
    not_compared: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether every comparison is within its bounds."""
        return all(each.exact for each in self.comparisons)

    @property
    def sentence(self) -> str:
        """The comparisons that are not exact, in one line."""
        wrong = [each.text for each in self.comparisons if not each.exact]
        return f"{self.name}: not the numbers of {self.reference}: {several(wrong, 6)}"

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """A table with its header."""
        return [
            ("compared", "largest difference", "exact"),
            *(
                (
                    each.quantity,
                    each.note or f"{each.difference:.1e}, allowed {each.bound:.1e}",
                    "yes" if each.exact else "no",
                )
                for each in self.comparisons
            ),
        ]


def verify(reading: Reading, image: str | Path | Image.Image, sizes: Sequence[tuple[int, int]] = ()) -> Verification:
    """Compare vitviz's own network with the package's model of the same folder, watched, both on the CPU in float32.

    Args:
        reading: the checkpoint as vitviz opened it, on the CPU.
        image: a photograph, to which each model applies its own preprocessing.
        sizes: heights and widths in pixels of noise to compare besides the trained size.

    Raises:
        CheckpointError: no file beside the checkpoint names a package, it is not installed, or it cannot open or run
            the checkpoint.
        ImageError: vitviz's model cannot take an image of one of the sizes.
    """
    model, files = reading.model, reading.files
    if model.engine == "module":
        return Verification(model.name, model.card.get("engine", "its package"), (), (SAME_MODEL,))
    if files.package is None or model.origin is None:
        raise CheckpointError(
            f"{model.name}: nothing to verify against: no file beside it names a package; expected a folder with "
            "timm's or transformers' config.json"
        )
    built, config = build_from_folder(files, model.origin.folder, model.name), model.network.config
    trained, photo = (config.image_height, config.image_width), open_image(image)
    theirs = _prepares(built, files.package, model)
    prepared = [
        each.prepare(photo, config.patch_height, config.patch_width).pixels
        for each in (model.preprocessing, theirs or model.preprocessing)
    ]
    comparisons = [] if theirs is None else [compare("pixels of the image", *prepared)]
    runs = []
    for size in dict.fromkeys([trained, *sizes]):
        noise = torch.randn(NOISE_IMAGES, config.channels, *size, generator=torch.Generator().manual_seed(SEED))
        runs.append((f"output for noise of {size[0]}×{size[1]}", size, noise, noise))
    runs.append(("output for the image", trained, prepared[0], prepared[1]))
    attention: dict[int, Comparison] = {}
    for quantity, size, ours, others in runs:
        with building(str(files.package), f"running at {size[0]}×{size[1]}"):
            network = _watched(built.module, size, model)
        with torch.inference_mode():
            (found, weights), encoding = model.network(ours, need_weights=True), network.encode(others)
            comparisons.append(compare(quantity, found, network(others)))
        for layer, own in enumerate(weights):
            other = torch.stack([trace.weights(layer) for trace in encoding.traces])
            each = compare(f"attention, layer {layer}", own, other, attention_bound(other))
            attention[layer] = max(each, attention.get(layer, each), key=lambda each: each.ratio)
    unread = () if theirs is not None else ("pixels: no file in the folder states to its package how to prepare them",)
    return Verification(model.name, built.title, (*comparisons, *attention.values()), unread)


def _watched(module: Any, size: tuple[int, int], model: Model) -> Network:
    """The package's module, watched at this size; timm's are resized to it."""
    config = model.network.config
    trained = config.image_height, config.image_width
    if hasattr(module, "set_input_size"):
        # It resizes the positions that it has.
        module, trained = deepcopy(module), size
        module.set_input_size(img_size=size)
    return load_module(
        module, preprocessing=model.preprocessing, labels=model.labels, prefix=config.prefix, image_size=trained
    ).network


def _prepares(built: Built, package: str | None, model: Model) -> Preprocessing | None:
    """What the package itself makes of pictures, without reading its fields; None if nothing states it."""
    function, ours = built.preprocessing, model.preprocessing
    if package == "timm":
        from timm import data

        stated = {**data.resolve_model_data_config(built.module), "input_size": (3, ours.height, ours.width)}
        function = data.create_transform(**stated, is_training=False)
    # Either takes grey pictures in a way of its own.
    return CallablePreprocessing(function) if function is not None and len(ours.mean) == 3 else None


def compare(quantity: str, ours: torch.Tensor, theirs: torch.Tensor, bound: torch.Tensor | None = None) -> Comparison:
    """The comparison of two tensors by the element with the largest ratio of difference and bound.

    Args:
        quantity: name of what is compared.
        ours, theirs: tensors of the same shape; other shapes are not exact.
        bound: allowed difference of each element, of a shape that expands to theirs; by default :data:`TOLERANCE`
            times the absolute reference, or times 1 if that is smaller.
    """
    if ours.shape != theirs.shape:
        shapes = f"shape {tuple(ours.shape)}, the package {tuple(theirs.shape)}"
        return Comparison(quantity, math.inf, TOLERANCE, False, shapes)
    ours, theirs = ours.double(), theirs.double()
    difference = (ours - theirs).abs()
    bound = TOLERANCE * theirs.abs().clamp(min=1) if bound is None else bound.double().expand_as(theirs)
    ratio = difference / bound
    # Values that are not finite are never exact, even if both have them.
    ratio[~(ours.isfinite() & theirs.isfinite())] = math.inf
    worst = int(ratio.argmax())
    numbers = float(difference.flatten()[worst]), float(bound.flatten()[worst])
    return Comparison(quantity, *numbers, exact=bool(ratio.flatten()[worst] <= 1))


def attention_bound(weights: torch.Tensor) -> torch.Tensor:
    """Allowed difference ``"... query 1"`` of attention weights ``"... query key"``.

    If each score is off by e, the softmax is off by at most tanh(e/2). A score may be off by :data:`TOLERANCE` times
    the spread of the scores in its row, which follows from the weights; in trained networks it can exceed 40.
    """
    lowest, highest = weights.double().aminmax(dim=-1, keepdim=True)
    spread = (highest / lowest.clamp(min=torch.finfo(torch.float32).tiny)).log()
    return TOLERANCE * (spread / 2).clamp(min=1)
