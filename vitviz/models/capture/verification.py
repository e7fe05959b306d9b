"""Whether what was captured is what the module computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from vitviz.attention.precision import precise
from vitviz.errors.kinds import ConfigError
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.codes import coded_places
from vitviz.models.capture.grids import is_one_grid
from vitviz.models.capture.interception import Interception
from vitviz.models.capture.order import TokenOrder, changed_patches, measured_order
from vitviz.models.capture.places import TokenPlaces
from vitviz.models.capture.residual import ResidualStream, find_stream
from vitviz.models.capture.structure import AttentionStructure, CallShape

Run = Callable[[torch.Tensor], torch.Tensor]
"""Pixels of one image, ``"1 channel height width"``, to a module's output."""

TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""What a module's attention may differ by, as a part of its largest number or of 1, in each type."""
# torch has a kernel of its own for torch.nn.MultiheadAttention, which differs in the last bits.
KERNEL_TOLERANCE = 1e-5


@dataclass
class _Check:
    """Holds each call to what it gave, and keeps no more of it than sizes and the first values."""

    shapes: list[CallShape] = field(default_factory=list)
    values: torch.Tensor | None = None
    has_bias: bool = False

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        number = len(self.shapes)
        self.has_bias |= call.bias is not None
        given = precise(call.output)
        difference = float((precise(call.to_output(call.context().to(call.values))) - given).abs().max())
        bound = TOLERANCES.get(call.output.dtype, 1e-5) * max(1.0, float(given.abs().max()))
        # Written so that a NaN is refused, too.
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
    """What was found out about a module at one shape of its input.

    Args:
        structure: its layers.
        order: where its patches stand among its tokens.
        has_bias: whether a layer adds something to its scores, or attends inside windows.
        is_written_out: whether the module makes whole matrices of attention weights.
        shapes: the sizes of all calls.
        first: which call of attention is the first layer.
        places: where the tokens of every layer are.
        stream: which additions give the tokens between the layers; None where that is not known.
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
        """How many windows the patches attend in, of every layer."""
        return tuple(each.windows for each in self.places)

    @property
    def is_padded(self) -> bool:
        """Whether windows reach beyond the picture, so that the layout begins with a token for what fills them up."""
        return any(each.is_padded for each in self.places)

    @property
    def extra(self) -> int:
        """How many tokens of the layout are no patches."""
        return self.order.extra + self.is_padded

    def padded(self) -> VerifiedCapture:
        """The same with a token for what fills up windows, which are filled up at another size."""
        return replace(self, places=tuple(replace(each, is_padded=True) for each in self.places), has_bias=True)

    @property
    def is_whole(self) -> bool:
        """Whether every call is a layer or the pooling, its tokens in the order of reading, each seen by all."""
        known = self.structure.depth + (self.structure.pooling is not None)
        return len(self.shapes) == known and all(each.is_in_reading_order for each in self.places)

    def layer_of(self, call: int) -> int | None:
        """Which layer a call of attention is, by its number in the forward pass; None for one that is no layer."""
        return call - self.first if 0 <= call - self.first < self.structure.depth else None

    def is_pooling(self, call: int) -> bool:
        """Whether a call is the pooling behind the layers."""
        return self.structure.pooling is not None and call == self.first + self.structure.depth


def verify_capture(
    run: Run, pixels: torch.Tensor, grid: tuple[int, int], extra: int, stated_depth: int | None = None
) -> VerifiedCapture:
    """Run a module on an image: as it is, captured, and captured with some of the patches changed.

    Args:
        run: its forward pass.
        pixels: ``"1 channel height width"``.
        grid: rows and columns of patches that the image should have.
        extra: how many tokens the module has that are no patches.
        stated_depth: how many layers the module says that it has, where it does.

    Raises:
        ConfigError: no attention is seen, it is not that of a grid of patches, or a number differs.
    """
    plain, check = run(pixels), _Check()
    with Interception(check) as seen:
        captured = run(pixels)
    unseen = seen.written_out.unused
    if unseen:
        found = f"{unseen} softmaxes between tokens whose scores or weights it changes in a way of its own"
        raise ConfigError(f"attention of {len(check.shapes)} layers was seen, and {found}")
    if not check.shapes:
        raise ConfigError(
            "no attention was seen: it has none, or that of another package's kernel, which shows nothing"
        )
    _check_output(plain, captured)
    is_written_out = seen.written_out.calls > 0
    try:
        structure = AttentionStructure.of(check.shapes, grid[0] * grid[1], stated_depth)
        order = _simple_order(run, pixels, grid, check)
        places = (order.places,) * structure.depth
        verified = VerifiedCapture(structure, order, check.has_bias, is_written_out, tuple(check.shapes), 0, places)
    except ConfigError as error:
        if stated_depth is not None and len(check.shapes) < stated_depth:
            raise
        verified = _coded(run, pixels, grid, extra, check, is_written_out, str(error))
    if not verified.is_whole:
        return verified
    tokens, depth = verified.structure.tokens, verified.structure.depth
    return replace(verified, stream=find_stream(run, pixels, tokens, verified.first, depth))


def _simple_order(run: Run, pixels: torch.Tensor, grid: tuple[int, int], check: _Check) -> TokenOrder:
    chosen, changed = changed_patches(pixels, grid)
    first = _First()
    with Interception(first):
        run(changed)
    assert check.values is not None and first.values is not None, "the first call was seen"
    return measured_order(check.values, first.values, chosen)


def _coded(
    run: Run,
    pixels: torch.Tensor,
    grid: tuple[int, int],
    extra: int,
    check: _Check,
    is_written_out: bool,
    reason: str,
) -> VerifiedCapture:
    """The layers of one grid among others, or inside windows, or of tokens in another order."""
    places: dict[int, TokenPlaces] = {}
    for more in dict.fromkeys((extra, 0)):
        places = places or coded_places(run, pixels, grid, check.shapes, more)
    if not places:
        grids = f"no layer's tokens can be told to be the {grid[0]}×{grid[1]} patches, each of them once"
        raise ConfigError(reason if is_one_grid(check.shapes) else f"{reason}; {grids}")
    first, last = min(places), max(places)
    between = [shape.tokens for at, shape in enumerate(check.shapes) if first < at < last and at not in places]
    patches = f"{len(places)} layers attend among the {grid[0]}×{grid[1]} patches"
    if between:
        others = f"{len(between)} between them otherwise, such as {between[0]}"
        raise ConfigError(f"{patches}, and {others}: padded windows, coarser keys or attention between channels")
    shapes = [check.shapes[at] for at in range(first, last + 1)]
    sizes = [each.sizes(places[first + at].has_heads_first) for at, each in enumerate(shapes)]
    if len(set(sizes)) > 1:
        found = " and ".join(f"{heads} heads of {dim} features" for heads, dim in dict.fromkeys(sizes))
        raise ConfigError(f"{patches}, with {found}; expected the same in every layer")
    tokens = len(places[first].index)
    behind = check.shapes[last + 1 :]
    pooling = behind[0] if len(behind) == 1 and behind[0].pools(tokens, grid[0] * grid[1]) else None
    heads, dim = sizes[0]
    structure = AttentionStructure(len(shapes), heads, dim, tokens, pooling)
    in_order = tuple(places[at] for at in range(first, last + 1))
    own_extra = tokens - grid[0] * grid[1]
    order = TokenOrder(own_extra, 0, grid[0] * grid[1])
    if pooling is not None and not all(each.is_sorted for each in in_order):
        raise ConfigError(f"{patches} in an order of its own, and a pooling reads them: vitviz does not follow that")
    has_bias = check.has_bias or any(each.windows > 1 for each in in_order)
    verified = VerifiedCapture(structure, order, has_bias, is_written_out, tuple(check.shapes), first, in_order)
    return verified.padded() if any(len(each.pads) for each in in_order) else verified


@dataclass
class _First:
    """Keeps the values of the first call."""

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
