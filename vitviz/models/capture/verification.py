"""Verifies that a capture is what the module computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from vitviz.attention.precision import precise
from vitviz.errors.kinds import ConfigError
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.codes import decode_places
from vitviz.models.capture.grids import is_one_grid
from vitviz.models.capture.interception import Interception
from vitviz.models.capture.order import TokenOrder, change_patches, measure_order
from vitviz.models.capture.places import TokenPlaces
from vitviz.models.capture.residual import ResidualStream, find_stream
from vitviz.models.capture.structure import AttentionStructure, CallShape

Run = Callable[[torch.Tensor], torch.Tensor]
"""A forward pass: pixels of one image, ``"1 channel height width"``, to the module's output."""

TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""The most by which attention may differ in each type, relative to the larger of 1 and its largest number."""
# torch has a separate kernel for torch.nn.MultiheadAttention, which differs in the last bits.
KERNEL_TOLERANCE = 1e-5


@dataclass
class _Check:
    """Compares each call with its output, and records its shape, as well as the values of the first call."""

    shapes: list[CallShape] = field(default_factory=list)
    values: torch.Tensor | None = None
    has_bias: bool = False

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        number = len(self.shapes)
        self.has_bias |= call.bias is not None
        expected = precise(call.output)
        difference = float((precise(call.to_output(call.context().to(call.values))) - expected).abs().max())
        bound = TOLERANCES.get(call.output.dtype, 1e-5) * max(1.0, float(expected.abs().max()))
        # The negated comparison refuses NaN, too.
        if not difference <= bound:
            raise ConfigError(
                f"attention of layer {number}: softmax(queries · keys · {call.scale:.4g} + bias) · values differs from "
                f"what the module computed by {difference:.2g}; expected at most {bound:.1g}"
            )
        self.shapes.append(CallShape.of(call))
        if number == 0:
            self.values = call.values[0].detach().clone()
        return call.output


@dataclass(frozen=True)
class VerifiedCapture:
    """The verified properties of a module for one input shape.

    Args:
        structure: its layers and pooling.
        order: order of its patches among its tokens.
        has_bias: whether a layer adds a bias to its scores, or attends inside windows.
        is_written_out: whether the module computes whole matrices of attention weights.
        shapes: shapes of all calls.
        first: number of the first layer's call.
        places: places of the tokens in every layer.
        stream: the residual stream; None if unknown.
    """

    structure: AttentionStructure
    order: TokenOrder
    has_bias: bool
    is_written_out: bool
    shapes: tuple[CallShape, ...]
    first: int
    places: tuple[TokenPlaces, ...]
    stream: ResidualStream | None = None

    @property
    def windows(self) -> tuple[int, ...]:
        """The number of windows in every layer."""
        return tuple(places.windows for places in self.places)

    @property
    def is_padded(self) -> bool:
        """Whether windows reach beyond the picture, so that the layout begins with a token that stands for padding."""
        return any(places.is_padded for places in self.places)

    @property
    def extra(self) -> int:
        """Number of tokens of the layout that are not patches."""
        return self.order.extra + self.is_padded

    def padded(self) -> VerifiedCapture:
        """The same with a token that stands for padding, which may occur only at another size."""
        return replace(self, places=tuple(replace(places, is_padded=True) for places in self.places), has_bias=True)

    @property
    def is_global(self) -> bool:
        """Whether every call is a layer or the pooling, and attends globally to tokens in reading order."""
        count = self.structure.depth + (self.structure.pooling is not None)
        return len(self.shapes) == count and all(places.is_in_reading_order for places in self.places)

    def layer_of(self, call: int) -> int | None:
        """The layer of a call, by its number in the forward pass; None if it is not a layer."""
        return call - self.first if 0 <= call - self.first < self.structure.depth else None

    def is_pooling(self, call: int) -> bool:
        """Whether a call is the pooling after the layers."""
        return self.structure.pooling is not None and call == self.first + self.structure.depth


def verify_capture(
    run: Run, pixels: torch.Tensor, grid: tuple[int, int], extra: int, stated_depth: int | None = None
) -> VerifiedCapture:
    """Verify a capture by running the module plainly, captured, and captured with some patches changed.

    Args:
        run: the module's forward pass.
        pixels: ``"1 channel height width"``.
        grid: expected rows and columns of patches.
        extra: number of the module's tokens that are not patches.
        stated_depth: number of layers that the module states; None if it states none.

    Raises:
        ConfigError: no attention is observed, it is not that of a grid of patches, or a number differs.
    """
    plain, check = run(pixels), _Check()
    with Interception(check) as interception:
        captured = run(pixels)
    unused = interception.eager_attention.unused
    if unused:
        reason = f"{unused} softmaxes whose scores or weights it modifies with operations that vitviz does not support"
        raise ConfigError(f"attention of {len(check.shapes)} layers was seen, and {reason}")
    if not check.shapes:
        raise ConfigError("no attention was seen: the module has none, or uses a kernel that cannot be observed")
    _check_output(plain, captured)
    is_written_out = interception.eager_attention.calls > 0
    try:
        structure = AttentionStructure.of(check.shapes, grid[0] * grid[1], stated_depth)
        order = _reading_order(run, pixels, grid, check)
        places = (order.places,) * structure.depth
        verified = VerifiedCapture(structure, order, check.has_bias, is_written_out, tuple(check.shapes), 0, places)
    except ConfigError as error:
        if stated_depth is not None and len(check.shapes) < stated_depth:
            raise
        verified = _decode(run, pixels, grid, extra, check, is_written_out, str(error))
    if not verified.is_global:
        return verified
    tokens, depth = verified.structure.tokens, verified.structure.depth
    return replace(verified, stream=find_stream(run, pixels, tokens, verified.first, depth))


def _reading_order(run: Run, pixels: torch.Tensor, grid: tuple[int, int], check: _Check) -> TokenOrder:
    patch_mask, changed = change_patches(pixels, grid)
    recorder = _ValueRecorder()
    with Interception(recorder):
        run(changed)
    assert check.values is not None and recorder.values is not None, "the first call was seen"
    return measure_order(check.values, recorder.values, patch_mask)


def _decode(
    run: Run,
    pixels: torch.Tensor,
    grid: tuple[int, int],
    extra: int,
    check: _Check,
    is_written_out: bool,
    reason: str,
) -> VerifiedCapture:
    """The capture of layers among several grids, inside windows, or with tokens in another order than reading order."""
    places: dict[int, TokenPlaces] = {}
    for count in dict.fromkeys((extra, 0)):
        places = places or decode_places(run, pixels, grid, check.shapes, count)
    if not places:
        grids = f"in no layer do the tokens match the {grid[0]}×{grid[1]} patches one to one"
        raise ConfigError(reason if is_one_grid(check.shapes) else f"{reason}; {grids}")
    first, last = min(places), max(places)
    between = [shape.tokens for call, shape in enumerate(check.shapes) if first < call < last and call not in places]
    patches = f"{len(places)} layers attend among the {grid[0]}×{grid[1]} patches"
    if between:
        calls = "1 call between them does not" if len(between) == 1 else f"{len(between)} calls between them do not"
        reasons = "padded windows, coarser keys or attention between channels"
        raise ConfigError(f"{patches}, but {calls}, such as {between[0]}: {reasons}")
    shapes = check.shapes[first : last + 1]
    sizes = [shape.sizes(places[call].has_heads_first) for call, shape in enumerate(shapes, first)]
    if len(set(sizes)) > 1:
        kinds = " and ".join(f"{heads} heads of {dim} features" for heads, dim in dict.fromkeys(sizes))
        raise ConfigError(f"{patches}, with {kinds}; expected the same in every layer")
    tokens = len(places[first].index)
    rest = check.shapes[last + 1 :]
    pooling = rest[0] if len(rest) == 1 and rest[0].pools(tokens, grid[0] * grid[1]) else None
    heads, dim = sizes[0]
    structure = AttentionStructure(len(shapes), heads, dim, tokens, pooling)
    layer_places = tuple(places[call] for call in range(first, last + 1))
    order = TokenOrder(tokens - grid[0] * grid[1], 0, grid[0] * grid[1])
    if pooling is not None and not all(place.is_sorted for place in layer_places):
        raise ConfigError(f"{patches}, but in windows or reordered: a pooling over these is not supported")
    has_bias = check.has_bias or any(place.windows > 1 for place in layer_places)
    verified = VerifiedCapture(structure, order, has_bias, is_written_out, tuple(check.shapes), first, layer_places)
    return verified.padded() if any(len(place.pads) for place in layer_places) else verified


@dataclass
class _ValueRecorder:
    """Records the values of the first call."""

    values: torch.Tensor | None = None

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        if self.values is None:
            self.values = call.values[0].detach()
        return call.output


def _check_output(plain: torch.Tensor, captured: torch.Tensor) -> None:
    if plain.shape == captured.shape and torch.equal(plain, captured):
        return
    difference = float((precise(plain) - precise(captured)).abs().max()) if plain.shape == captured.shape else torch.inf
    bound = TOLERANCES.get(plain.dtype, KERNEL_TOLERANCE) * max(1.0, float(precise(plain).abs().max()))
    if not difference <= bound:
        raise ConfigError(
            f"two forward passes on one image differ by {difference:.2g}: expected a module without randomness"
        )
