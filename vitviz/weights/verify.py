"""Compares vitviz with the package that a checkpoint comes from: pixels, outputs and attention weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from vitviz.errors.kinds import CheckpointError, VitvizError
from vitviz.errors.messages import several
from vitviz.images.opening import open_image
from vitviz.models.capture.network import CapturedNetwork
from vitviz.models.network import Network, NetworkConfig
from vitviz.models.pooling import POOLINGS
from vitviz.models.require import require_vit
from vitviz.models.vit import VisionTransformer
from vitviz.weights.packages import PACKAGES, Answer, ReferenceModel, find_package, open_reference
from vitviz.weights.packages.captured import Pairs, captured_attention, captured_output
from vitviz.weights.packages.reference import Size, check_counts, package_errors
from vitviz.weights.read import Reading

TOLERANCE = 1e-5
"""Allowed difference in float32, relative to the absolute reference, or to 1 if that is smaller."""
PHOTO = "chelsea.jpg"
"""The bundled photograph, the default image."""
SEED = 0
NOISE_IMAGES = 2


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
    """
    model = reading.model
    package = find_package(PACKAGES, reading.sidecars, model.name)
    assert model.origin is not None, "files beside it were read"
    folder, network = model.origin.folder, model.network
    numbers = sum(parameter.numel() for parameter in network.parameters())
    check_counts(package.config_of(reading.sidecars), model.name, numbers)
    reference = open_reference(package, folder)
    image_name = "the image" if isinstance(image, Image.Image) else Path(image).name
    photo = open_image(image)
    comparisons: list[Comparison] = []
    attention: dict[int, Comparison] = {}
    not_compared: dict[str, None] = {}

    def run_both(quantity: str, peer: ReferenceModel, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        with torch.inference_mode():
            with package_errors(package.name, f"cannot compute the {quantity}"):
                expected = peer.answer(theirs)
            output, pairs = _outputs_and_attention(network, ours, expected)
        comparisons.append(compare(quantity, *output))
        if not pairs:
            reason = "does not give those of these layers" if expected.attention else "does not give them"
            not_compared[f"attention weights: {peer.title} {reason}"] = None
        for layer, (our_weights, their_weights) in enumerate(pairs):
            each = compare(f"attention, layer {layer}", our_weights, their_weights, attention_bound(their_weights))
            if layer not in attention or each.ratio > attention[layer].ratio:
                attention[layer] = each
        if isinstance(network, VisionTransformer) and 0 < len(expected.attention) != network.config.depth:
            layers = f"of {network.config.depth} layers, the package's of {len(expected.attention)}"
            comparisons.append(Comparison("attention", math.inf, TOLERANCE, False, layers))

    config = network.config
    trained = reference.size or (config.image_height, config.image_width)
    for size in dict.fromkeys([trained, *sizes]):
        peer = reference if size == trained else open_reference(package, folder, size)
        noise = _noise(config.channels, size)
        run_both(f"output for noise of {size[0]}×{size[1]}", peer, whole_patches(noise, config), noise)
    try:
        with package_errors(package.name, f"cannot prepare {image_name}"):
            theirs = reference.preprocess(photo)
        ours = model.preprocessing.prepare(photo, config.patch_height, config.patch_width).pixels
    except VitvizError as error:
        not_compared[f"pixels: {error}"] = None
    else:
        comparisons.insert(0, compare(f"pixels of {image_name}", ours, whole_patches(theirs, config)))
        run_both(f"output for {image_name}", reference, ours, theirs)
    return Verification(model.name, reference.title, (*comparisons, *attention.values()), tuple(not_compared))


def _outputs_and_attention(
    network: Network, pixels: torch.Tensor, expected: Answer
) -> tuple[tuple[torch.Tensor, torch.Tensor], Pairs]:
    """Our output and theirs, and our attention and theirs for each layer that both have."""
    if isinstance(network, CapturedNetwork):
        return captured_output(network, pixels, expected), captured_attention(network, pixels, expected)
    vit = require_vit(network, "comparing")
    output, weights = vit(pixels, need_weights=True)
    pairs = zip(weights, expected.attention, strict=False)
    return (output, expected_output(expected, vit, pixels)), tuple(pairs)


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


def expected_output(answer: Answer, network: VisionTransformer, pixels: torch.Tensor) -> torch.Tensor:
    """The package's output; if it has none, its tokens with vitviz's pooling."""
    if answer.output is not None:
        return answer.output
    pool = POOLINGS[network.config.pooling].pool
    if answer.tokens is None or pool is None:
        raise CheckpointError("the package's model gives neither an output nor tokens to compare")
    return pool(answer.tokens, network.config.layout(*pixels.shape[-2:]))


def _noise(channels: int, size: Size) -> torch.Tensor:
    return torch.randn(
        NOISE_IMAGES, channels, *size, dtype=torch.float32, generator=torch.Generator().manual_seed(SEED)
    )
