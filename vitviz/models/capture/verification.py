"""Whether what was captured is what the module computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from vitviz.attention.precision import precise
from vitviz.errors.kinds import ConfigError
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.interception import Interception
from vitviz.models.capture.order import TokenOrder, changed_patches, measured_order
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
        has_bias: whether a layer adds something to its scores.
        is_written_out: whether the module makes whole matrices of attention weights.
    """

    structure: AttentionStructure
    order: TokenOrder
    has_bias: bool
    is_written_out: bool


def verify_capture(
    run: Run, pixels: torch.Tensor, grid: tuple[int, int], stated_depth: int | None = None
) -> VerifiedCapture:
    """Run a module three times on an image: as it is, captured, and captured with half of the patches changed.

    Args:
        run: its forward pass.
        pixels: ``"1 channel height width"``.
        grid: rows and columns of patches that the image should have.
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
    structure = AttentionStructure.of(check.shapes, grid[0] * grid[1], stated_depth)
    _check_output(plain, captured)
    chosen, changed = changed_patches(pixels, grid)
    first = _First()
    with Interception(first):
        run(changed)
    assert check.values is not None and first.values is not None, "the first call was seen"
    order = measured_order(check.values, first.values, chosen)
    return VerifiedCapture(structure, order, check.has_bias, seen.written_out.calls > 0)


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
