"""vitviz held to the package that a checkpoint comes from: pixels, outputs and attention weights side by side."""

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
from vitviz.models.capture import CapturedNetwork
from vitviz.models.network import Network, NetworkConfig
from vitviz.models.pooling import POOLINGS
from vitviz.models.require import require_vit
from vitviz.models.vit import VisionTransformer
from vitviz.weights.packages import PACKAGES, Answer, ReferenceModel, find_package, open_reference
from vitviz.weights.packages.captured import Pairs, captured_attention, captured_output
from vitviz.weights.packages.reference import Size, package_errors
from vitviz.weights.read import Reading

TOLERANCE = 1e-5
"""What float32 may differ by: this part of the reference, or of 1 where the reference is smaller."""
PHOTO = "chelsea.jpg"
"""The bundled photograph, which both prepare by default."""
SEED = 0
NOISE_IMAGES = 2


@dataclass(frozen=True)
class Comparison:
    """The largest difference of one thing that both computed.

    Args:
        what: such as ``"output for noise"``.
        difference: the largest absolute difference; infinite where shapes or values cannot be compared.
        bound: how large it may be there.
        exact: whether every difference is within its bound.
        note: what else is to be said, such as two shapes that differ.
    """

    what: str
    difference: float
    bound: float
    exact: bool
    note: str = ""

    @property
    def part(self) -> float:
        """The difference as a part of what is allowed."""
        return self.difference / self.bound

    @property
    def text(self) -> str:
        """In one line."""
        return f"{self.what} {self.note or f'differs by {self.difference:.2g} (allowed {self.bound:.1g})'}"


@dataclass(frozen=True)
class Verification:
    """A checkpoint held to the package that it comes from.

    Args:
        name: of the checkpoint.
        reference: the package's model.
        comparisons: of pixels, outputs and attention weights.
        without: what could not be compared, in words.
    """

    name: str
    reference: str
    comparisons: tuple[Comparison, ...]
    without: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether every number is the package's."""
        return all(each.exact for each in self.comparisons)

    @property
    def sentence(self) -> str:
        """What is not exact, in one line."""
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
            rows.append((each.what, difference, "yes" if each.exact else "no"))
        return rows


def verify(reading: Reading, image: str | Path | Image.Image, sizes: Sequence[Size] = ()) -> Verification:
    """Run the package's own model of a checkpoint's folder beside vitviz's, both on the processor, in float32.

    Nothing is downloaded, and nothing in the folder is executed: the package builds one of its own classes from the
    folder's configuration and reads tensors.

    Args:
        reading: the checkpoint as vitviz opened it, on the processor.
        image: a photograph, which both prepare by themselves.
        sizes: heights and widths in pixels at which noise is compared besides the trained size.

    Raises:
        CheckpointError: no file beside the checkpoint names a package, it is not installed, or it cannot open or run
            the checkpoint.
    """
    model = reading.model
    package = find_package(PACKAGES, reading.sidecars, model.name)
    assert model.origin is not None, "files beside it were read"
    folder, network = model.origin.folder, model.network
    reference = open_reference(package, folder)
    named = "the image" if isinstance(image, Image.Image) else Path(image).name
    photo = open_image(image)
    found: list[Comparison] = []
    attention: dict[int, Comparison] = {}
    without: dict[str, None] = {}

    def run_both(what: str, peer: ReferenceModel, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        with torch.inference_mode():
            with package_errors(package.name, f"cannot compute the {what}"):
                expected = peer.answer(theirs)
            output, pairs = _compared(network, ours, expected)
        found.append(compare(what, *output))
        if not pairs:
            lacks = "does not give those of these layers" if expected.attention else "does not give them"
            without[f"attention weights: {peer.title} {lacks}"] = None
        for layer, (own, other) in enumerate(pairs):
            each = compare(f"attention, layer {layer}", own, other, attention_bound(other))
            if layer not in attention or each.part > attention[layer].part:
                attention[layer] = each
        if isinstance(network, VisionTransformer) and 0 < len(expected.attention) != network.config.depth:
            layers = f"of {network.config.depth} layers, the package's of {len(expected.attention)}"
            found.append(Comparison("attention", math.inf, TOLERANCE, False, layers))

    config = network.config
    trained = reference.size or (config.image_height, config.image_width)
    for size in dict.fromkeys([trained, *sizes]):
        peer = reference if size == trained else open_reference(package, folder, size)
        noise = _noise(config.channels, size)
        run_both(f"output for noise of {size[0]}×{size[1]}", peer, whole_patches(noise, config), noise)
    try:
        with package_errors(package.name, f"cannot prepare {named}"):
            theirs = reference.prepare(photo)
        ours = model.preprocessing.prepare(photo, config.patch_height, config.patch_width).pixels
    except VitvizError as error:
        without[f"pixels: {error}"] = None
    else:
        found.insert(0, compare(f"pixels of {named}", ours, whole_patches(theirs, config)))
        run_both(f"output for {named}", reference, ours, theirs)
    return Verification(model.name, reference.title, (*found, *attention.values()), tuple(without))


def _compared(
    network: Network, pixels: torch.Tensor, expected: Answer
) -> tuple[tuple[torch.Tensor, torch.Tensor], Pairs]:
    """The outputs for pixels, ours and theirs, and in the same way the attention of each layer that both have."""
    if isinstance(network, CapturedNetwork):
        return captured_output(network, pixels, expected), captured_attention(network, pixels, expected)
    own = require_vit(network, "comparing")
    output, weights = own(pixels, need_weights=True)
    pairs = zip(weights, expected.attention, strict=False)
    return (output, expected_output(expected, own, pixels)), tuple(pairs)


def compare(what: str, ours: torch.Tensor, theirs: torch.Tensor, bound: torch.Tensor | None = None) -> Comparison:
    """The element that is furthest beyond, or nearest to, what it may differ by.

    Args:
        what: for the sentence.
        ours, theirs: of one shape.
        bound: what each element may differ by, of a shape that expands to theirs; :data:`TOLERANCE` of the reference,
            or of 1 where that is smaller, where it is not given.
    """
    if ours.shape != theirs.shape:
        shapes = f"shape {tuple(ours.shape)}, the package {tuple(theirs.shape)}"
        return Comparison(what, math.inf, TOLERANCE, False, shapes)
    ours, theirs = ours.double(), theirs.double()
    difference = (ours - theirs).abs()
    bound = TOLERANCE * theirs.abs().clamp(min=1) if bound is None else bound.double().expand_as(theirs)
    part = difference / bound
    # What is no number is not exact, whatever the package has there.
    part[~(ours.isfinite() & theirs.isfinite())] = math.inf
    worst = int(part.argmax())
    figures = float(difference.flatten()[worst]), float(bound.flatten()[worst])
    return Comparison(what, *figures, exact=bool(part.flatten()[worst] <= 1))


def attention_bound(weights: torch.Tensor) -> torch.Tensor:
    """What attention weights ``"... query key"`` may differ by, ``"... query 1"``.

    The softmax of scores of which each is off by e is off by at most tanh(e/2). A score may be off by :data:`TOLERANCE`
    of how far the scores of its row lie apart, as its weights tell; in trained networks that can be 40 and more.
    """
    lowest, highest = weights.double().aminmax(dim=-1, keepdim=True)
    apart = (highest / lowest.clamp(min=torch.finfo(torch.float32).tiny)).log()
    return TOLERANCE * (apart / 2).clamp(min=1)


def whole_patches(pixels: torch.Tensor, config: NetworkConfig) -> torch.Tensor:
    """Without the last rows and columns that are no whole patch, which a convolution does not see."""
    height, width = pixels.shape[-2:]
    rows, columns = height // config.patch_height, width // config.patch_width
    return pixels[..., : rows * config.patch_height, : columns * config.patch_width]


def expected_output(answer: Answer, network: VisionTransformer, pixels: torch.Tensor) -> torch.Tensor:
    """The package's output, or its tokens pooled as vitviz pools them where it has no output."""
    if answer.output is not None:
        return answer.output
    pool = POOLINGS[network.config.pooling].pool
    if answer.tokens is None or pool is None:
        raise CheckpointError("the package's model gives neither an output nor tokens to compare")
    return pool(answer.tokens, network.config.layout(*pixels.shape[-2:]))


def _noise(channels: int, size: Size) -> torch.Tensor:
    return torch.randn(NOISE_IMAGES, channels, *size, generator=torch.Generator().manual_seed(SEED))
