"""The layer whose vectors find a place again, chosen by a measure that needs no labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from PIL import Image, ImageOps

from vitviz.attention.precision import precise, without_autocast
from vitviz.errors.arguments import instance
from vitviz.errors.kinds import MethodError
from vitviz.features.vectors import Kind, layer_vectors
from vitviz.images.callable_preprocessing import CallablePreprocessing
from vitviz.images.opening import open_image
from vitviz.models.network import Network
from vitviz.models.weight_samples import network_samples
from vitviz.progress import Progress, shown_bar
from vitviz.weights import Model
from vitviz.weights.bundled import resources

# Bundled photographs, what is taken of each side, from the top left corner, and how many times that is enlarged.
PHOTOGRAPHS, PART, ENLARGEMENT = ("chelsea", "flower", "perch", "coffee"), 0.7, 1.4
# In patches, along each axis: in the same place, which an enlarged patch shares with others, and within one patch.
EXACT, WITHIN_ONE = {"mirrored": 0.01, "enlarged": 0.9}, 1.6


@dataclass(frozen=True, eq=False)
class LayerScores:
    """The share of a photograph's patches whose most similar one, by cosine, is the same place of it, changed.

    A shifted crop would tell nothing: raw pixels find every patch of it.

    Args:
        layers: ``"layer change tolerance"``: of the mirrored photograph and of one that is enlarged 1.4 times around
            its centre; in the same place, and within one patch of it.
        pixels: ``"change tolerance"``, the same of the patches' raw pixels.
    """

    layers: torch.Tensor
    pixels: torch.Tensor

    @cached_property
    def best(self) -> int:
        """The layer that finds most of what pixels do not find, in the mean of both changes."""
        gains = (self.layers - self.pixels)[..., 0] / (1 - self.pixels[:, 0]).clamp(min=0.01)
        return int(gains.mean(1).argmax())


_known: WeakKeyDictionary[Network, dict[tuple[Kind, bytes], LayerScores]] = WeakKeyDictionary()


@without_autocast()
def layer_scores(model: Model, of: Kind = "tokens") -> LayerScores:
    """How well each layer of a model finds places again: the mean of four bundled photographs.

    Computed once, by twelve passes at the model's own resolution, and kept as long as the model; after a second, a bar
    on a terminal or in a notebook says how far they are.

    Args:
        model: as :func:`vitviz.load` gives it.
        of: whose vectors, as :meth:`vitviz.Analysis.features` takes it.

    Raises:
        MethodError: the tokens of a watched module cannot be read between its layers, or its inputs vary in size.

    >>> vitviz.features.layer_scores(model).best
    5
    """
    network = instance("model", model, Model, "vitviz.load()").network
    key = of, network_samples(network)
    scores = _known.setdefault(network, {})
    if key not in scores:
        parts = list[torch.Tensor]()
        with shown_bar(f"choosing a layer of {model.name}", len(PHOTOGRAPHS)) as report:
            for name in PHOTOGRAPHS:
                parts.append(_scores(model, of, name))
                report(Progress(len(parts), len(PHOTOGRAPHS)))
        found = torch.stack(parts).mean(0)
        scores[key] = LayerScores(found[1:], found[0])
    return scores[key]


def _scores(model: Model, of: Kind, photograph: str) -> torch.Tensor:
    """The scores of pixels, then of every layer, ``"layer change tolerance"``."""
    rows, columns = size = torch.tensor([model.layout.grid_height, model.layout.grid_width])
    places = torch.cartesian_prod(torch.arange(float(rows)), torch.arange(float(columns)))
    centre, flip, scores = (size - 1) / 2, torch.tensor([1.0, -1.0]), []
    targets = {"mirrored": (places - centre) * flip + centre, "enlarged": (places - centre) * ENLARGEMENT + centre}
    pictures = _pictures(model, photograph)
    whole = list(_vectors(model, of, pictures["whole"]))
    for change, target in targets.items():
        inside = ((target > -0.5) & (target < size - 0.5)).all(1)
        pairs = zip(whole, _vectors(model, of, pictures[change]), strict=True)
        distances = torch.stack([(places[(one @ other.T).argmax(1)] - target).abs().amax(1) for one, other in pairs])
        scores.append(
            torch.stack([(distances[:, inside] <= most).float().mean(1) for most in (EXACT[change], WITHIN_ONE)], 1)
        )
    return torch.stack(scores, 1)


def _pictures(model: Model, name: str) -> dict[str, Image.Image]:
    """A part of a bundled photograph at the size of the model's input, its mirror image, and its centre enlarged."""
    layout, config = model.layout, model.network.config
    shape = layout.grid_width * config.patch_width, layout.grid_height * config.patch_height
    base = ImageOps.fit(
        open_image(resources("assets") / f"{name}.jpg"), (round(shape[0] / PART), round(shape[1] / PART))
    )
    whole = base.crop((0, 0, *shape))
    across, down = (side * (1 - 1 / ENLARGEMENT) / 2 for side in shape)
    enlarged = whole.resize(shape, Image.Resampling.BICUBIC, (across, down, shape[0] - across, shape[1] - down))
    return {"whole": whole, "mirrored": ImageOps.mirror(whole), "enlarged": enlarged}


def _vectors(model: Model, of: Kind, picture: Image.Image) -> Iterator[torch.Tensor]:
    """Those of the patches' pixels, then of every layer, ``"patch channel"``, each of length 1."""
    layout, patch = model.layout, (model.network.config.patch_height, model.network.config.patch_width)
    preprocessing = model.preprocessing
    if not isinstance(preprocessing, CallablePreprocessing):
        # A picture that has the size of the input is not resized.
        preprocessing = replace(preprocessing, fit="squash", squash_fraction=1.0)
    pixels = preprocessing.prepare(picture, *patch).pixels
    patches = F.unfold(pixels, patch, stride=patch)[0].T
    if len(patches) != layout.patch_count:
        raise MethodError(f"{model.name}: its inputs vary in size, so that no layer can be chosen; expected layer=")
    yield F.normalize(patches - patches.mean(1, keepdim=True), dim=1)
    for each in layer_vectors(model.network, pixels, of):
        yield F.normalize(precise(each[layout.prefix_count :]).cpu(), dim=1)
