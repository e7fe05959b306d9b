"""A verified module's forward pass as a program that can be run again, with its calls of attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import torch

from vitviz.attention.precision import precise
from vitviz.errors.kinds import ConfigError
from vitviz.models.watched.attention_operations import (
    COPIES,
    LINEAR,
    PRODUCTS,
    Attention,
    check_kernel,
    operands_of,
    origin,
)
from vitviz.models.watched.calls import AttentionCall
from vitviz.models.watched.finder import AttentionFinder, joined
from vitviz.models.watched.program import PICTURE, Constant, Hook, Program, Result, Step
from vitviz.models.watched.reader import call_hooks
from vitviz.models.watched.recorder import Run, follow, record
from vitviz.models.watched.structure import CallShape

OnCall = Callable[[AttentionCall], torch.Tensor]


def call_output(call: AttentionCall) -> torch.Tensor:
    """The output of a call: the function that changes nothing."""
    return call.output


TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""The most by which attention may differ in each type, relative to the larger of 1 and its largest number."""


def check_call(call: AttentionCall) -> CallShape:
    """The shape of a call, after a comparison with its output.

    Raises:
        ConfigError: a number differs.
    """
    expected = precise(call.output)
    difference = float((precise(call.context().to(call.values)) - expected).abs().max())
    bound = TOLERANCES.get(call.output.dtype, 1e-5) * max(1.0, float(expected.abs().max()))
    # The negated comparison refuses NaN, too.
    if not difference <= bound:
        raise ConfigError(
            f"attention call {call.number}: softmax(queries · keys · {call.scale:.4g} + bias) · values differs "
            f"from what the module computed by {difference:.2g}; expected at most {bound:.1g}"
        )
    counts = len(call.queries), call.heads, call.query_count, call.key_count
    return CallShape(*counts, call.queries.shape[-1], call.bias is not None)


@dataclass(eq=False)
class Replay:
    """A program with the attention of each of its calls.

    Args:
        program: of a picture.
        calls: for each call of attention, its parts: one, or heads that are calls of their own.
        output: of that picture.
        unknown: numbers of other products that have a number for each pair of tokens and reach the output.
        shapes: of all calls, if each was compared with what the module computed.
    """

    program: Program
    calls: list[list[Attention]]
    output: torch.Tensor
    unknown: tuple[int, ...]
    shapes: tuple[CallShape, ...] = ()

    @classmethod
    def of(cls, run: Run, pixels: torch.Tensor) -> Replay:
        """The replay of a module, recorded on pictures ``"picture channel height width"``.

        Raises:
            ConfigError: its operations cannot be reported one by one, or one is a kernel that is not read; no attention
                is observed, or its weights are used in another way.
        """
        finder = AttentionFinder()
        program, output = record(run, pixels, finder)
        if bool(output.isnan().any()):
            raise ConfigError("its output has NaN: expected finite weights")
        live = set(program.live)
        for number in sorted(live):
            check_kernel(program.steps[number])
        calls = joined(program, finder.found)
        for parts in calls:
            program.delay([part.step for part in parts])
        found = cls(program, calls, output.detach(), ())
        unused = [
            number
            for number in finder.softmaxes
            if number in live and number not in finder.taken and _is_square(program.steps[number].shape)
        ]
        if unused:
            tokens = (program.steps[unused[0]].shape or (0,))[-1]
            raise ConfigError(
                f"layer {found.before(unused[0])}: the weights of a softmax among {tokens} tokens do not sum to 1 for "
                "each query where they meet values, or values that they meet are not seen; expected weights that it "
                f"uses as the softmax makes them ({len(calls)} calls of attention are like that, {len(unused)} are not)"
            )
        if reused := [each for each in finder.reused if each in live]:
            raise ConfigError(
                f"layer {max(0, found.before(reused[0]) - 1)}: its attention weights make another product beside the "
                "one with its values, such as with positions or keys; expected one, which gradients and switched-off "
                "heads are about"
            )
        if not calls:
            raise ConfigError(
                "no attention was seen: expected a softmax of products of queries and keys, whose weights meet values; "
                "linear and sigmoid attention have none, and a kernel of its own, or a sink, is not read"
            )
        known = {step for parts in calls for part in parts for step in (part.step, part.scores)}
        return replace(
            found, unknown=tuple(each for each in sorted(live - known) if _makes_pairs(program.steps[each], live))
        )

    def checked(self, pixels: torch.Tensor) -> Replay:
        """The same with the shapes of its calls, on the picture on which it was recorded.

        Raises:
            ConfigError: a number differs.
        """
        shapes: list[CallShape] = []

        def check(call: AttentionCall) -> torch.Tensor:
            shapes.append(check_call(call))
            return call.output

        check_output(self.output, self(pixels, check))
        return replace(self, shapes=tuple(shapes))

    def __call__(
        self,
        pixels: torch.Tensor,
        on_call: OnCall = call_output,
        hooks: Mapping[int, Hook] | None = None,
        until: Collection[int] | None = None,
        output: Result | None = None,
    ) -> torch.Tensor:
        """The output for another picture; of all calls, also those that it does not read.

        Args:
            pixels: ``"1 channel height width"``.
            on_call: receives the calls in order, and returns the output in the place of each.
            hooks: receive the results of other steps by their numbers, and return those in their place.
            until: numbers of the steps behind which nothing matters, so that there is no output; None for all.
            output: another result in place of the module's own output.
        """
        steps = self.steps_of(*range(len(self.calls))) if until is None else until
        outputs = [output or self.program.output] if until is None else []
        all_hooks = {**self.hooks(on_call), **(hooks or {})}
        results = self.program.run({PICTURE: pixels.clone()}, outputs, all_hooks, steps)
        return results[0] if results else pixels.new_zeros(0)

    def follow(self, run: Run, pixels: torch.Tensor, on_call: OnCall, hooks: Mapping[int, Hook]) -> torch.Tensor:
        """The output of the module's own pass, which is held to the program.

        Args:
            run: the module's forward pass.
            pixels: ``"picture channel height width"``.
            on_call: receives the calls in order; it returns the output of each.
            hooks: receive other results, by number of the step.

        Raises:
            ChangedPass: an operation differs.
        """
        return follow(run, pixels, self.program, {**self.hooks(on_call), **hooks})

    def hooks(self, on_call: OnCall) -> dict[int, Hook]:
        """Hooks that pass each call to a function, which returns the output in its place."""
        hooks: dict[int, Hook] = {}
        for number, parts in enumerate(self.calls):
            hooks |= call_hooks(number, parts, on_call, self.program.steps)
        return hooks

    @property
    def is_written_out(self) -> bool:
        """Whether the module computes whole matrices of attention weights."""
        return any(not part.is_fused for parts in self.calls for part in parts)

    def steps_of(self, *calls: int) -> list[int]:
        """Numbers of the steps of some calls."""
        return [part.step for call in calls for part in self.calls[call]]

    def before(self, step: int) -> int:
        """Number of calls that end before a step."""
        return sum(parts[-1].step < step for parts in self.calls)

    def last_step(self, call: int) -> int:
        """Number of the last step of a call."""
        return max(self.steps_of(call))

    def tokens_of(self, call: int) -> Result | None:
        """The tokens that all linear maps to a call's queries, keys and values read; else the last of these; or None.

        An adapter, such as LoRA, reads them by maps of its own.
        """
        steps, shape = self.program.steps, self.shapes[call]
        program = replace(self.program, output=Result(self.calls[call][0].step))
        maps = [steps[number] for number in program.live if steps[number].name in (*LINEAR, "convolution")]
        # A convolution that is not of each feature alone is no linear map of tokens.
        if maps and maps[-1].name == "convolution" and maps[-1].args[-1] == 1:
            return None
        pairs = [
            [origin(steps, each.args[place], COPIES) for place in PRODUCTS.get(each.name, (0, 1))]
            for each in maps
            if each.name in LINEAR
        ]
        inputs = [
            tokens
            for tokens, weights in pairs
            if isinstance(tokens, Result)
            and isinstance(origin(steps, weights), Constant)
            and math.prod((steps[tokens.step].shape or ())[:-1]) == shape.windows * shape.queries
        ]
        shared = set(program.cuts()).difference(range(self.last_step(call - 1) if call else PICTURE))
        return next(reversed([each for each in inputs if each.step in shared] or inputs), None)

    @property
    def output_step(self) -> Step:
        """The operation that makes the output, before views of it."""
        reference = origin(self.program.steps, self.program.output)
        return self.program.steps[reference.step if isinstance(reference, Result) else PICTURE]

    @property
    def features(self) -> Result | None:
        """The input of the linear map whose result is the output; None for another output."""
        place = {"addmm": 1, "mm": 0, "linear": 0}.get(self.output_step.name)
        found = None if place is None else self.output_step.args[place]
        return found if isinstance(found, Result) else None


def _makes_pairs(step: Step, live: Collection[int]) -> bool:
    """Whether a step is a product of tokens with tokens."""
    is_product = step.name in PRODUCTS and _is_square(step.shape)
    return is_product and all(isinstance(each, Result) and each.step in live for each in operands_of(step, step.args))


def _is_square(shape: tuple[int, ...] | None) -> bool:
    return shape is not None and len(shape) > 1 and shape[-1] == shape[-2] > 1


def check_output(plain: torch.Tensor, watched: torch.Tensor) -> None:
    """Check that two passes on one image have the same output.

    Raises:
        ConfigError: they differ.
    """
    if plain.shape == watched.shape and torch.equal(plain, watched):
        return
    difference = float((precise(plain) - precise(watched)).abs().max()) if plain.shape == watched.shape else torch.inf
    # torch has a separate kernel for torch.nn.MultiheadAttention, which differs in the last bits.
    bound = TOLERANCES.get(plain.dtype, 1e-5) * max(1.0, float(precise(plain).abs().max()))
    if not difference <= bound:
        raise ConfigError(
            f"its pass on an image differs by {difference:.2g} when it is run again: expected a module that draws no "
            "random numbers"
        )
