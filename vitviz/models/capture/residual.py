"""The residual stream of a captured module: its tokens before the first layer and after each one.

Additions are observed as attention is, by torch's function modes. A chain of additions, each of which takes the result
of the one before, runs through the layers and forms the residual stream. A test verifies it: when the last tokens of
one picture replace those of another, the module must return the first picture's output.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from vitviz.attention.precision import precise
from vitviz.errors.kinds import ConfigError
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.eager_attention import ADDITIONS, Function
from vitviz.models.capture.interception import Interception

# Relative to the larger of 1 and the output's largest number.
OUTPUT_TOLERANCE = 1e-5
SEED = 1
Run = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class ResidualStream:
    """The additions whose results are the tokens between a module's layers, among all additions to all tokens.

    Args:
        tokens: number of tokens.
        start: number of the addition that adds to the tokens that enter the first layer.
        operand: index of the operand that these tokens are, 0 or 1.
        ends: numbers of the additions whose results are the layers' outputs, in order.
    """

    tokens: int
    start: int
    operand: int
    ends: tuple[int, ...]


def is_addition(function: Function, args: tuple[Any, ...], result: Any, tokens: int) -> bool:
    """Whether a function adds two tensors ``"1 token width"`` with ``tokens`` tokens."""
    return (
        function in ADDITIONS
        and result.ndim == 3
        and result.shape[1] == tokens
        and len(args) == 2
        and all(isinstance(operand, torch.Tensor) and operand.shape == result.shape for operand in args)
    )


@dataclass
class StreamTap:
    """Passes the tokens between the layers to a function, which may replace them.

    Args:
        stream: the module's residual stream.
        on_step: receives the number of the step, 0 before the first layer, and its tokens ``"1 token width"``. Its
            result replaces the tokens, except at step 0.
    """

    stream: ResidualStream
    on_step: Callable[[int, torch.Tensor], torch.Tensor]
    number: int = 0

    def __call__(self, function: Function, args: tuple[Any, ...], result: Any) -> Any:
        if not is_addition(function, args, result, self.stream.tokens):
            return result
        number, self.number = self.number, self.number + 1
        if number == self.stream.start:
            self.on_step(0, args[self.stream.operand])
        if number in self.stream.ends:
            return self.on_step(self.stream.ends.index(number) + 1, result)
        return result


def find_stream(
    run: Run, pixels: torch.Tensor, tokens: int, calls: tuple[int, ...], is_depth_stated: bool
) -> tuple[ResidualStream | None, tuple[str, ...]]:
    """The residual stream of a module, and what was remarked about it, in words.

    None if its layers' additions form none, or its output reads other tokens.

    Args:
        run: its forward pass.
        pixels: ``"1 channel height width"``.
        tokens: number of tokens in each of its layers.
        calls: number of each layer's call of attention.
        is_depth_stated: whether the module states that these are its layers.
    """
    chain = _Chain(tokens, calls)
    with Interception(chain.on_call, chain):
        run(pixels)
    gaps = [layer for layer in range(1, len(calls)) if layer not in chain.joined]
    remarks: tuple[str, ...] = ()
    if len(gaps) == 1 and chain.joined and not is_depth_stated:
        parts = f"layers 0 to {gaps[0] - 1} and {gaps[0]} to {len(calls) - 1}"
        remarks = (
            f"residual connections join {parts} among themselves, but not with each other, as in an encoder and a "
            "decoder; a map of all layers goes through both",
        )
    stream = chain.stream()
    return (stream if stream is not None and _determines_output(run, pixels, stream) else None), remarks


def last_tokens(run: Run, pixels: torch.Tensor, stream: ResidualStream) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens after the last layer, ``"1 token width"``, and the output."""
    copies: list[torch.Tensor] = []

    def copy_last(step: int, tokens: torch.Tensor) -> torch.Tensor:
        if step == len(stream.ends):
            # A copy, since the module may change the tokens in place.
            copies.append(tokens.clone())
        return tokens

    with Interception(call_output, StreamTap(stream, copy_last)):
        output = run(pixels)
    if not copies:
        raise ConfigError("the module's residual additions differ from those in which its residual stream was found")
    return copies[0], output


def output_of_tokens(run: Run, pixels: torch.Tensor, stream: ResidualStream, tokens: torch.Tensor) -> torch.Tensor:
    """A module's output ``"batch …"`` for tokens that replace those after its last layer.

    Args:
        run: its forward pass.
        pixels: any picture of the size, ``"1 channel height width"``.
        stream: its residual stream.
        tokens: ``"batch token width"``, in the module's order.
    """

    def replace(step: int, module_tokens: torch.Tensor) -> torch.Tensor:
        return tokens if step == len(stream.ends) else module_tokens

    with Interception(call_output, StreamTap(stream, replace)):
        return run(pixels)


def _determines_output(run: Run, pixels: torch.Tensor, stream: ResidualStream) -> bool:
    """Whether the last tokens determine the output: those of two pictures, in one pass, must give both outputs."""
    noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(SEED)).to(pixels)
    pairs = [last_tokens(run, image, stream) for image in (pixels, noise)]
    expected = torch.cat([output for _, output in pairs])
    try:
        actual = output_of_tokens(run, noise, stream, torch.cat([tokens for tokens, _ in pairs]))
    # The code after the layers may be written for a single picture.
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return False
    if actual.shape != expected.shape:
        return False
    difference = float((precise(actual) - precise(expected)).abs().max())
    return difference <= OUTPUT_TOLERANCE * max(1.0, float(precise(expected).abs().max()))


def call_output(call: AttentionCall) -> torch.Tensor:
    """The output of a call: the function for :class:`Interception` that changes nothing."""
    return call.output


@dataclass
class _Chain:
    """Follows the chain of additions through the layers."""

    tokens: int
    layers: tuple[int, ...]
    calls: int = 0
    number: int = 0
    branch: list[torch.Tensor] = field(default_factory=list)
    current: torch.Tensor | None = None
    start: tuple[int, int] | None = None
    ends: dict[int, int] = field(default_factory=dict)
    joined: set[int] = field(default_factory=set)
    """The layers whose additions continue those of the layer before."""
    layer: int = -1
    sums: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    """The last sum of the layer before, and that of this one."""

    def on_call(self, call: AttentionCall) -> torch.Tensor:
        self.calls = call.number + 1
        return call.output

    def __call__(self, function: Function, args: tuple[Any, ...], result: Any) -> Any:
        layer = bisect_left(self.layers, self.calls) - 1
        if is_addition(function, args, result, self.tokens):
            number, self.number = self.number, self.number + 1
            # What comes behind another call after the layers is not theirs.
            if layer >= 0 and self.calls <= self.layers[-1] + 1:
                self._follow(number, layer, args, result)
                self._join(layer, args, result)
        if layer == 0 and self.current is None and isinstance(result, torch.Tensor):
            # Results since the first layer's attention, as opposed to the tokens to which they are added.
            self.branch.append(result)
        return result

    def _join(self, layer: int, args: tuple[Any, ...], result: torch.Tensor) -> None:
        if layer != self.layer:
            self.layer, self.sums = layer, (self.sums[1], None)
        before, current = self.sums
        if current is None or any(operand is current for operand in args):
            self.sums = before, result
            if any(operand is before for operand in args):
                self.joined.add(layer)

    def _follow(self, number: int, layer: int, args: tuple[Any, ...], result: torch.Tensor) -> None:
        if self.current is not None:
            if any(operand is self.current for operand in args):
                self.current, self.ends[layer] = result, number
            return
        inputs = [index for index, operand in enumerate(args) if not any(operand is tensor for tensor in self.branch)]
        # An addition in place overwrites the layer's input.
        if len(inputs) == 1 and layer == 0 and result is not args[inputs[0]]:
            self.current, self.start, self.ends[0] = result, (number, inputs[0]), number

    def stream(self) -> ResidualStream | None:
        if self.start is None or sorted(self.ends) != list(range(len(self.layers))):
            return None
        return ResidualStream(self.tokens, *self.start, tuple(self.ends[layer] for layer in range(len(self.layers))))
