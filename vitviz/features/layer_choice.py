"""The layer whose vectors find a place again, chosen by a measure that needs no labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from vitviz.attention.precision import plain_torch, precise
from vitviz.caching import cached_property
from vitviz.errors.arguments import instance, word
from vitviz.features.vectors import KINDS, Kind, layer_vectors
from vitviz.images.opening import open_image
from vitviz.models.network import Network
from vitviz.models.weight_samples import network_samples
from vitviz.progress import progress_bar
from vitviz.weights import Model
from vitviz.weights.bundled import resources

# Of each photograph so much of both sides, from the upper left: the subject is then not in the middle.
PHOTOGRAPHS, PART = ("chelsea", "flower", "perch", "coffee"), 0.7
# Factors of a place's distance from the centre, down and across: of the mirrored and of the enlarged photograph.
CHANGES = ((1.0, -1.0), (1.4, 1.4))
# In patches, along each axis: in the same place, which an enlarged patch shares with others, and within one patch.
TOLERANCES = (0.9, 1.6)


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


@plain_torch()
def layer_scores(model: Model, of: Kind = "tokens") -> LayerScores:
    """How well each layer of a model finds places again: the mean of four bundled photographs.

    Computed once, by twelve passes at the model's own resolution, and kept as long as the model; after a second, a bar
    on a terminal or in a notebook says how far they are.

    Args:
        model: as :func:`vitviz.load` gives it.
        of: whose vectors, as :meth:`vitviz.Analysis.features` takes it.

    Raises:
        MethodError: there are no such vectors, or the tokens of a watched module cannot be read between its layers.

    >>> vitviz.features.layer_scores(model).best
    5
    """
    network = instance("model", model, Model, "vitviz.load()").network
    key = word("of", of, KINDS), network_samples(network)
    scores = _known.setdefault(network, {})
    if key not in scores:
        found = torch.stack(
            [_scores(model, of, name) for name in progress_bar(f"choosing a layer of {model.name}", PHOTOGRAPHS)]
        ).mean(0)
        scores[key] = LayerScores(found[1:], found[0])
    return scores[key]


def _scores(model: Model, of: Kind, photograph: str) -> torch.Tensor:
    """The scores of pixels, then of every layer, ``"layer change tolerance"``."""
    network, config = model.network, model.network.config
    picture = open_image(resources("assets") / f"{photograph}.jpg")
    picture = picture.crop((0, 0, round(PART * picture.width), round(PART * picture.height)))
    pixels = model.preprocessing.prepare(picture, config.patch_height, config.patch_width).pixels
    layout = config.layout(*pixels.shape[-2:])
    size = pixels.new_tensor([layout.grid_height, layout.grid_width])
    places = torch.cartesian_prod(*(torch.arange(float(side)).to(size) for side in size)) - (size - 1) / 2
    whole, scores = list(_vectors(network, of, pixels)), []
    for down, across in CHANGES:
        # A pixel of the changed photograph lies so much nearer to the centre of the whole one.
        matrix = pixels.new_tensor([[1 / across, 0.0, 0.0], [0.0, 1 / down, 0.0]])
        grid = F.affine_grid(matrix[None], list(pixels.shape), align_corners=False)
        changed = F.grid_sample(pixels, grid, mode="bicubic", align_corners=False)
        targets = places * size.new_tensor([down, across])
        inside = (targets.abs() < size / 2).all(1)
        pairs = zip(whole, _vectors(network, of, changed), strict=True)
        found = torch.stack([places[(one @ other.T).argmax(1)] for one, other in pairs])
        distances = (found - targets).abs().amax(-1)[:, inside, None]
        scores.append((distances <= size.new_tensor(TOLERANCES)).float().mean(1))
    return torch.stack(scores, 1)


def _vectors(network: Network, of: Kind, pixels: torch.Tensor) -> Iterator[torch.Tensor]:
    """Those of the patches' pixels, then of every layer, ``"patch channel"``, each of length 1."""
    patch = network.config.patch_height, network.config.patch_width
    patches = F.unfold(pixels, patch, stride=patch)[0].T
    yield F.normalize(patches - patches.mean(1, keepdim=True), dim=1)
    for each in layer_vectors(network, pixels, of):
        yield F.normalize(precise(each[-len(patches) :]).cpu(), dim=1)
