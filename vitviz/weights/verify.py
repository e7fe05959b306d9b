"""Compares vitviz with the package that a checkpoint comes from: pixels, outputs and attention weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from vitviz.errors.kinds import CheckpointError, ConfigError, ImageError, VitvizError
from vitviz.errors.messages import several
from vitviz.images.opening import open_image
from vitviz.models.network import Network, NetworkConfig
from vitviz.models.pooling import POOLINGS
from vitviz.models.vit import VisionTransformer
from vitviz.models.watched import ModuleFacts
from vitviz.models.watched.network import WatchedNetwork
from vitviz.models.watched.outputs import is_vector
from vitviz.weights.model import Model
from vitviz.weights.modules.calling import default_forward
from vitviz.weights.packages import Package, ReferenceModel, find_package
from vitviz.weights.packages.reference import Size, import_package, package_errors
from vitviz.weights.read import Reading

TOLERANCE = 1e-5
"""Allowed difference in float32, relative to the absolute reference, or to 1 if that is smaller."""
PHOTO = "chelsea.jpg"
"""The bundled photograph, the default image."""
SEED = 0
NOISE_IMAGES = 2
# A reason why attention weights are not compared.
SAME_CAPTURE = (
    "attention weights: vitviz has no network of its own for this family, and watches them from this package's model; "
    "each call is verified against what the model computes"
)


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
        if not wrong:
            return f"{self.name}: exactly the numbers of {self.reference}"
        return f"{self.name}: not the numbers of {self.reference}: {several(wrong, 6)}"

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """A table with its header."""
        rows = [("compared", "largest difference", "exact")]
        for each in self.comparisons:
            difference = each.note or f"{each.difference:.1e}, allowed {each.bound:.1e}"
            rows.append((each.quantity, difference, "yes" if each.exact else "no"))
        return rows


def verify(reading: Reading, image: str | Path | Image.Image, sizes: Sequence[Size] = ()) -> Verification:
    """Compare vitviz's model with the package's own model of the same folder, both on the CPU in float32.

    Nothing is downloaded, and nothing in the folder is executed: the package builds one of its own classes from the
    folder's configuration and reads tensors.

    Args:
        reading: the checkpoint as vitviz opened it, on the CPU.
        image: a photograph, to which each model applies its own preprocessing.
        sizes: heights and widths in pixels of noise to compare besides the trained size.

    Raises:
        CheckpointError: no file beside the checkpoint names a package, it is not installed, or it cannot open or run
            the checkpoint.
        ImageError: vitviz's model cannot take an image of one of the sizes.
    """
    model = reading.model
    package = find_package(reading.sidecars)
    if package is None:
        raise CheckpointError(
            f"{model.name}: nothing to verify against: no file beside it names a package; expected a folder with "
            "timm's or transformers' config.json or with open_clip_config.json"
        )
    assert model.origin is not None, "files beside it were read"
    folder, network, config = model.origin.folder, model.network, model.network.config
    import_package(package, "verifying")
    reference = _open(package, folder)
    image_name = "the image" if isinstance(image, Image.Image) else Path(image).name
    photo = open_image(image)
    comparisons: list[Comparison] = []
    attention: dict[int, Comparison] = {}
    not_compared = [SAME_CAPTURE] if isinstance(network, WatchedNetwork) else []
    networks: dict[Size, WatchedNetwork] = {}

    def run_both(quantity: str, watched: WatchedNetwork, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        with torch.inference_mode():
            with package_errors(package.name, f"cannot compute the {quantity}"):
                expected, their_weights = _output_and_attention(watched, whole_patches(theirs, config))
            output, our_weights = _output_and_attention(network, ours)
        comparisons.append(compare(quantity, output, _pooled(expected, network, ours)))
        if isinstance(network, WatchedNetwork):
            return
        if len(our_weights) != len(their_weights):
            layers = f"of {len(our_weights)} layers, the package's of {len(their_weights)}"
            comparisons.append(Comparison("attention", math.inf, TOLERANCE, False, layers))
        for layer, pair in enumerate(zip(our_weights, their_weights, strict=False)):
            each = compare(f"attention, layer {layer}", *pair, attention_bound(pair[1]))
            if layer not in attention or each.ratio > attention[layer].ratio:
                attention[layer] = each

    trained = reference.size or (config.image_height, config.image_width)
    for size in dict.fromkeys([trained, *sizes]):
        peer = reference if size == trained else _open(package, folder, size)
        with package_errors(package.name, f"cannot run at {size[0]}×{size[1]}"):
            networks[size] = _watch(peer, model, size)
        noise = _noise(config.channels, size)
        quantity = f"output for noise of {size[0]}×{size[1]}"
        run_both(quantity, networks[size], whole_patches(noise, config), noise)
    try:
        with package_errors(package.name, f"cannot prepare {image_name}"):
            theirs = reference.preprocess(photo)
        ours = model.preprocessing.prepare(photo, config.patch_height, config.patch_width).pixels
    except VitvizError as error:
        not_compared.append(f"pixels: {error}")
    else:
        comparisons.insert(0, compare(f"pixels of {image_name}", ours, whole_patches(theirs, config)))
        run_both(f"output for {image_name}", networks[trained], ours, theirs)
    return Verification(model.name, reference.title, (*comparisons, *attention.values()), tuple(not_compared))


def _open(package: Package, folder: Path, size: Size | None = None) -> ReferenceModel:
    with package_errors(package.name, f"cannot open {folder.name}"):
        return package.load(folder, size, None)


def _watch(reference: ReferenceModel, model: Model, size: Size) -> WatchedNetwork:
    """The package's model for images of a size, watched.

    Raises:
        CheckpointError: it cannot take them, or its attention cannot be watched.
    """
    network, config = model.network, model.network.config
    patch = config.patch_height, config.patch_width
    whole = size[0] // patch[0] * patch[0], size[1] // patch[1] * patch[1]

    def forward(module: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
        # The last rows and columns of an image, which fill no patch, are for the package alone.
        height, width = (max(0, side - pixels.shape[axis]) for side, axis in zip(size, (-2, -1), strict=True))
        fills_no_patch = height < patch[0] and width < patch[1]
        padded = F.pad(pixels, (0, width, 0, height), value=1.0) if fills_no_patch else pixels
        return reference.output(default_forward(module, model.name, reference.size or size)(module, padded))

    facts = (
        replace(network.facts, image_size=whole)
        if isinstance(network, WatchedNetwork)
        else ModuleFacts(model.name, whole, patch, config.channels, config.prefix, 0, forward)
    )
    try:
        return WatchedNetwork(reference.module, facts)
    except (ConfigError, ImageError) as error:
        raise CheckpointError(f"{reference.title} for images of {size[0]}×{size[1]}: {error}") from None


def _output_and_attention(network: Network, pixels: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A network's output, or its last tokens, and the attention weights of its layers, ``"batch head query key"``."""
    if not isinstance(network, WatchedNetwork):
        return network(pixels, need_weights=True)
    traces = network.encode(pixels).traces
    weights = [torch.stack([trace.weights(layer) for trace in traces]) for layer in range(network.config.depth)]
    return torch.cat([network.returned(image) for image in pixels.split(1)]), weights


def _pooled(output: torch.Tensor, network: Network, pixels: torch.Tensor) -> torch.Tensor:
    """The package's output; if it gives only tokens, these with vitviz's pooling."""
    pool = POOLINGS[network.config.pooling].pool if isinstance(network, VisionTransformer) else None
    return output if pool is None or is_vector(output) else pool(output, network.config.layout(*pixels.shape[-2:]))


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


def whole_patches(pixels: torch.Tensor, config: NetworkConfig) -> torch.Tensor:
    """The pixels without the last rows and columns that fill no patch, which a convolution ignores."""
    height, width = pixels.shape[-2:]
    rows, columns = height // config.patch_height, width // config.patch_width
    return pixels[..., : rows * config.patch_height, : columns * config.patch_width]


def _noise(channels: int, size: Size) -> torch.Tensor:
    return torch.randn(
        NOISE_IMAGES, channels, *size, dtype=torch.float32, generator=torch.Generator().manual_seed(SEED)
    )
