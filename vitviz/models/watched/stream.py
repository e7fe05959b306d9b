"""The residual stream of a module: its tokens before the first layer and after each one.

They are steps of its program through which everything passes that the output reads of the picture, so that they
determine the output, and of which each reaches the next one past the attention between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from vitviz.models.watched.attention_operations import COPIES
from vitviz.models.watched.program import PICTURE, Hook, Program, first_tensor
from vitviz.models.watched.replay import Replay

# Operations that residual connections pass, without norms and with them.
SUMS = (
    *("add", "add_", "sub", "mul", "mul_", "addcmul", "lerp", "transpose", "permute", "t", "cat", "slice", "split"),
    *("split_with_sizes", "select", *COPIES),
)
NORMS = (
    *("native_layer_norm", "_fused_rms_norm", "native_group_norm", "native_batch_norm"),
    *("_native_batch_norm_legit_no_training", "div", "sub_", "div_"),
)


@dataclass(frozen=True)
class ResidualStream:
    """The steps whose results are the tokens between a module's layers.

    Args:
        tokens: number of tokens.
        start: number of the step that makes the tokens before the first layer.
        ends: numbers of the steps that make the tokens after each layer.
    """

    tokens: int
    start: int
    ends: tuple[int, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        return (self.start, *self.ends)

    def tokens_of(self, replay: Replay, pixels: torch.Tensor) -> list[torch.Tensor]:
        """The results of its steps, as :meth:`in_front`, in a pass on a picture."""
        found: list[torch.Tensor] = []
        # Copies, since the module may change its tokens in place.
        replay(pixels, hooks=self.hooks(self.steps, lambda tokens: found.append(tokens.clone())))
        return found

    def hooks(self, steps: Sequence[int], on_tokens: Callable[[torch.Tensor], Any]) -> dict[int, Hook]:
        """Hooks that pass the results of some of its steps to a function, as :meth:`in_front`, without gradients."""

        def hook(number: int, args: Any, kwargs: Any, result: Any, values: Any) -> Any:
            on_tokens(self.in_front(first_tensor(result).detach()))
            return result

        return dict.fromkeys(steps, hook)

    def in_front(self, tensor: torch.Tensor) -> torch.Tensor:
        """A step's result as ``"picture token width"``."""
        if tensor.ndim == 2:
            return tensor.unflatten(0, (-1, self.tokens))
        return tensor if tensor.shape[1] == self.tokens else tensor.transpose(0, 1)

    def given(self, program: Program, number: int, tokens: torch.Tensor) -> dict[int, Any]:
        """Tokens ``"1 token width"`` as the result of one of :attr:`steps`, from which a program can go on."""
        step = self.steps[number]
        shape = program.steps[step].shape or ()
        shaped = tokens[0] if len(shape) == 2 else tokens if shape[1] == self.tokens else tokens.transpose(0, 1)
        # Nothing reads what a norm also returns.
        others = [None] * (len(program.steps[step].operator._schema.returns) - 1)
        return {step: (shaped.clone(), *others) if others else shaped.clone()}


def find_stream(replay: Replay, tokens: int, calls: Sequence[int]) -> tuple[ResidualStream | None, tuple[str, ...]]:
    """The residual stream of a module, and what was remarked about it, in words.

    None if its layers have none, or the output reads other tokens, too.

    Args:
        replay: of the module.
        tokens: number of tokens in each of its layers.
        calls: number of each layer's call of attention.
    """
    program = replay.program
    attention = [replay.last_step(call) for call in calls]
    pictures = (program.steps[PICTURE].shape or (1,))[0]
    shapes = (pictures, tokens), (tokens, pictures), (pictures * tokens,)
    cuts = [number for number in program.cuts() if (program.steps[number].shape or ())[:-1] in shapes]
    before = [number for number in cuts if number < attention[0]]
    ends = [max((cut for cut in cuts if start < cut < stop), default=None) for start, stop in pairwise(attention)]
    if not before or None in ends:
        return None, ()
    found = [before[-1], *(end for end in ends if end is not None)]
    last = _last_end(program, cuts, found, attention)
    if last is None:
        return None, ()
    found.append(last)
    pairs = list(pairwise(found))
    gaps = [layer for layer, pair in enumerate(pairs) if not _continues(program, *pair, SUMS)]
    # Norms may stand on the residual connections of all layers, but not between two of them.
    if len(gaps) != 1 or len(calls) == 1:
        gaps = [layer for layer in gaps if not _continues(program, *pairs[layer], (*SUMS, *NORMS))]
    remarks: tuple[str, ...] = ()
    if len(gaps) == 1 and gaps[0] + 1 < len(calls):
        remarks = (
            f"residual connections join layers 0 to {gaps[0]} and {gaps[0] + 1} to {len(calls) - 1} among themselves, "
            "but not with each other, as in an encoder and a decoder; a map of all layers goes through both",
        )
    is_alike = len({program.steps[number].shape for number in found}) == 1
    return (ResidualStream(tokens, found[0], tuple(found[1:])) if is_alike and not gaps else None), remarks


def _last_end(program: Program, cuts: Sequence[int], found: Sequence[int], attention: Sequence[int]) -> int | None:
    """The step after the last layer that has the place of those after the others, or the last sum of a single layer."""
    behind = [number for number in cuts if number > attention[-1]]
    if len(attention) > 1:
        place = sum(attention[0] < number < found[1] for number in cuts)
        return behind[place] if place < len(behind) else None
    sums = [number for number in behind if program.steps[number].name in ("add", "add_")]
    return max(sums or behind, default=None)


def _continues(program: Program, first: int, last: int, names: Collection[str]) -> bool:
    """Whether a residual connection of these operations leads from one step to another one."""
    reached = {first}
    for number in range(first + 1, last + 1):
        step = program.steps[number]
        if step.name in names and not reached.isdisjoint(step.reads):
            reached.add(number)
    return last in reached
