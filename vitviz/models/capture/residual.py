"""The tokens of a captured module before its first layer and after each one, where its layers add to their tokens.

Additions are seen as attention is, by torch's function modes. Those whose operand is the last one's result form a chain
through the layers, the residual stream. Nothing is believed: the last tokens of one picture, put in the place of
another's, have to give the one's output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from vitviz.attention.precision import precise
from vitviz.errors.kinds import ConfigError
from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.interception import Interception
from vitviz.models.capture.written_out import PLUS, Function

NO_STREAM = "its layers do not add to their tokens in a way that vitviz sees, so that it cannot read them in between"
# What two ways to the same output may differ by, as a part of its largest number or of 1.
SAME_OUTPUT = 1e-5
SEED = 1
Run = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class ResidualStream:
    """Which of a module's additions to all tokens give the tokens between its layers.

    Args:
        tokens: how many there are.
        start: number of the addition of which an operand enters the first layer.
        operand: which one, 0 or 1.
        ends: numbers of the additions that give what each layer gives, in their order.
    """

    tokens: int
    start: int
    operand: int
    ends: tuple[int, ...]


def is_addition(function: Function, args: tuple[Any, ...], result: Any, tokens: int) -> bool:
    """Whether a function adds two tensors ``"1 token width"`` of so many tokens."""
    return (
        function in PLUS
        and result.ndim == 3
        and result.shape[1] == tokens
        and len(args) == 2
        and all(isinstance(each, torch.Tensor) and each.shape == result.shape for each in args)
    )


@dataclass
class StreamTap:
    """Hands the tokens between the layers to a function, which says what the module goes on with.

    Args:
        stream: of the module.
        on_step: receives the number of the step, 0 for what enters the first layer, and its tokens
            ``"1 token width"``. What it returns of a later step takes their place.
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


def find_stream(run: Run, pixels: torch.Tensor, tokens: int, first: int, depth: int) -> ResidualStream | None:
    """The residual stream of a module; None where its layers' additions form none, or its output reads other tokens.

    Args:
        run: its forward pass.
        pixels: ``"1 channel height width"``.
        tokens: of each of its layers.
        first: number of the call of attention that is the first layer's.
        depth: how many layers it has.
    """
    chain = _Chain(tokens, first, depth)
    with Interception(chain.on_call, chain):
        run(pixels)
    stream = chain.stream()
    return stream if stream is not None and _is_all_that_is_read(run, pixels, stream) else None


def last_tokens(run: Run, pixels: torch.Tensor, stream: ResidualStream) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens after the last layer, ``"1 token width"``, and the output."""
    kept: list[torch.Tensor] = []

    def keep(step: int, found: torch.Tensor) -> torch.Tensor:
        if step == len(stream.ends):
            # A copy: the module may go on in place.
            kept.append(found.clone())
        return found

    with Interception(_own_output, StreamTap(stream, keep)):
        output = run(pixels)
    if not kept:
        raise ConfigError("the module added to its tokens otherwise when its residual stream was found")
    return kept[0], output


def output_of_tokens(run: Run, pixels: torch.Tensor, stream: ResidualStream, tokens: torch.Tensor) -> torch.Tensor:
    """What a module makes of tokens after its last layer, ``"batch …"``.

    Args:
        run: its forward pass.
        pixels: of any picture of the size, ``"1 channel height width"``.
        stream: of the module.
        tokens: ``"batch token width"``, in the module's order.
    """

    def replace(step: int, found: torch.Tensor) -> torch.Tensor:
        return tokens if step == len(stream.ends) else found

    # Tokens alone may need gradients, and nothing below them.
    with Interception(_own_output, StreamTap(stream, replace)):
        return run(pixels)


def _is_all_that_is_read(run: Run, pixels: torch.Tensor, stream: ResidualStream) -> bool:
    """Whether the tokens of two pictures after the last layer, put into one pass together, give both outputs."""
    noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(SEED)).to(pixels)
    pairs = [last_tokens(run, image, stream) for image in (pixels, noise)]
    expected = torch.cat([output for _, output in pairs])
    try:
        found = output_of_tokens(run, noise, stream, torch.cat([tokens for tokens, _ in pairs]))
    # What is behind the layers may be made for one picture.
    except (RuntimeError, ValueError, IndexError):
        return False
    if found.shape != expected.shape:
        return False
    difference = float((precise(found) - precise(expected)).abs().max())
    return difference <= SAME_OUTPUT * max(1.0, float(precise(expected).abs().max()))


def _own_output(call: AttentionCall) -> torch.Tensor:
    return call.output


@dataclass
class _Chain:
    """Finds the chain of additions through the layers."""

    tokens: int
    first: int
    depth: int
    calls: int = 0
    number: int = 0
    young: list[torch.Tensor] = field(default_factory=list)
    current: torch.Tensor | None = None
    start: tuple[int, int] | None = None
    ends: dict[int, int] = field(default_factory=dict)

    def on_call(self, call: AttentionCall) -> torch.Tensor:
        self.calls += 1
        return call.output

    def __call__(self, function: Function, args: tuple[Any, ...], result: Any) -> Any:
        layer = self.calls - 1 - self.first
        if is_addition(function, args, result, self.tokens):
            number, self.number = self.number, self.number + 1
            if 0 <= layer < self.depth:
                self._follow(number, layer, args, result)
        if layer == 0 and self.current is None and isinstance(result, torch.Tensor):
            # What the first layer's attention makes, other than the tokens that it is added to.
            self.young.append(result)
        return result

    def _follow(self, number: int, layer: int, args: tuple[Any, ...], result: torch.Tensor) -> None:
        if self.current is not None:
            if any(each is self.current for each in args):
                self.current, self.ends[layer] = result, number
            return
        old = [at for at, each in enumerate(args) if not any(each is young for young in self.young)]
        # Added in place, what entered would be gone.
        if len(old) == 1 and layer == 0 and result is not args[old[0]]:
            self.current, self.start, self.ends[0] = result, (number, old[0]), number

    def stream(self) -> ResidualStream | None:
        if self.start is None or sorted(self.ends) != list(range(self.depth)):
            return None
        return ResidualStream(self.tokens, *self.start, tuple(self.ends[layer] for layer in range(self.depth)))
