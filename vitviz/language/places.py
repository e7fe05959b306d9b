"""Which part of the user's picture each token of a network that writes stands for.

Attention mixes tokens, so it returns zeros while the picture passes through the network. What then still leads from
the picture to a token's key is a part of the picture that the token begins with. Gradients find it: they are zero
exactly where nothing leads, whatever merges, shuffles, cuts or pads the picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from vitviz.errors.kinds import ConfigError
from vitviz.language.coordinates import PictureInputs, measure_coordinates
from vitviz.language.generation import generate
from vitviz.language.prompts import Prompt
from vitviz.models.watched.attention import Attention, operands_of
from vitviz.models.watched.finder import AttentionFinder
from vitviz.models.watched.program import PICTURE, Hook, Program, Step
from vitviz.models.watched.recorder import recording
from vitviz.models.watched.state import device_of

QUERY_TOKENS = (
    "no token of its decoder stands for one part of the picture, as where a few queries read it all; expected a "
    "network that hands patches on, merged or not"
)


@dataclass(frozen=True, eq=False)
class TokenBoxes:
    """The parts of one picture that tokens stand for.

    Args:
        index: ``"token"``, numbers among the keys that the decoder reads.
        boxes: ``"token edge"``: left, top, right and bottom in pixels of the picture.
    """

    index: torch.Tensor
    boxes: torch.Tensor


class _Enough(BaseException):
    """Ends a pass that has come far enough."""


def measure_places(prompt: Prompt, inputs: PictureInputs, call: int) -> list[TokenBoxes]:
    """The tokens of each picture, in their order.

    Args:
        prompt: pictures and question.
        inputs: those of the network for it.
        call: number of the first call of attention whose keys are the picture's tokens, of a pass.

    Raises:
        ConfigError: the tokens stand for no parts of their own, or the places cannot be measured.
    """
    owner, is_owned = _owners(*_program(prompt, inputs, call), inputs)
    coordinates = (measure_coordinates(prompt, inputs, number) for number in range(len(prompt.pictures)))
    pairs = zip(coordinates, prompt.pictures, strict=True)
    return [_boxes(owner, is_owned & is_painted, (x, y), picture.size) for (x, y, is_painted), picture in pairs]


def _program(prompt: Prompt, inputs: PictureInputs, call: int) -> tuple[Program, list[Attention]]:
    """The operations from the picture to the keys of a call, which are its output, and the attention with this call."""
    finder, attention = AttentionFinder(has_picture=False), list[Attention]()

    def observe(number: int, step: Step, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        finder(number, step, args, kwargs, result)
        attention.extend(finder.found)
        finder.found.clear()
        if len(attention) > call:
            raise _Enough

    # Inputs of all types in one row, as the processor makes them.
    flat = inputs.flat.to(device_of(prompt.model.module))
    with torch.no_grad(), recording(flat, observe) as recorder, suppress(_Enough):
        generate(prompt.model.module, prompt.moved(inputs.inputs(flat)), 1)
    last = attention[-1]
    if last.is_fused:
        keys = recorder.steps[last.step].args[1]
    elif last.scores is None:
        raise ConfigError("the keys of its attention are not seen: no place of a token can be measured")
    else:
        product = recorder.steps[last.scores]
        keys = operands_of(product, product.args)[not last.is_flipped]
    return Program(recorder.steps, recorder.constants, keys, list(range(1, len(recorder.steps)))), attention


def _owners(
    program: Program, attention: Sequence[Attention], inputs: PictureInputs
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token to which each sampled number of the picture leads, and whether it leads to one.

    The gradient of the sum of some tokens is not zero where one of them is reached. Tokens are summed by the digits of
    their numbers, and by those of the count of their zeros: of a number that reaches two tokens, these digits
    contradict each other (Berger 1961, "A note on error detection codes for asymmetric channels").

    Raises:
        ConfigError: a number leads to several tokens, or none to any.
    """

    def cut(number: int, args: Any, kwargs: Any, result: Any, values: Any) -> Any:
        return (torch.zeros_like(result[0]), *result[1:]) if isinstance(result, tuple) else torch.zeros_like(result)

    *before, last = attention
    hooks: dict[int, Hook] = {each.step: cut for each in before}
    with torch.enable_grad():
        leaf = inputs.flat.to(program.constants[0].device).requires_grad_()
        [keys] = program.run({PICTURE: leaf}, [program.output], hooks)
        # A product of its own takes them with the features first.
        tokens = keys.movedim(-2 if last.is_fused or last.is_flipped else -1, 0).flatten(1)
        if not tokens.requires_grad:
            raise ConfigError(QUERY_TOKENS)
        weights = torch.randn(tokens.shape[1], generator=torch.Generator().manual_seed(0))
        scores = tokens @ weights.to(tokens)
        numbers = torch.arange(len(scores))
        digits = max(1, (len(scores) - 1).bit_length())
        ones = torch.stack([numbers >> digit & 1 for digit in range(digits)]).sum(0)
        zeros = digits - ones

        def reached(is_summed: torch.Tensor) -> torch.Tensor:
            chosen = torch.where(is_summed.to(scores.device), scores, 0).sum()
            return (torch.autograd.grad(chosen, leaf, retain_graph=True)[0][inputs.sample] != 0).cpu()

        codes, read = numbers | zeros << digits, torch.zeros(leaf[inputs.sample].shape, dtype=torch.int32)
        for digit in range(digits + digits.bit_length()):
            read.add_(reached((codes >> digit & 1) == 1), alpha=1 << digit)
    is_reached, owner = read != 0, (read & (1 << digits) - 1).clamp_(max=len(codes) - 1)
    is_shared = codes.int()[owner] != read
    share = float((is_reached & is_shared).sum() / is_reached.sum().clamp(min=1))
    if share:
        raise ConfigError(f"{share:.0%} of its input leads to several tokens at once, as where convolutions overlap")
    return owner, is_reached


def _boxes(
    owner: torch.Tensor, is_used: torch.Tensor, places: Sequence[torch.Tensor], size: tuple[int, int]
) -> TokenBoxes:
    index, at = owner[is_used].long().unique(return_inverse=True)
    if not len(index):
        raise ConfigError(QUERY_TOKENS)
    edges = []
    for values, length in zip([each[is_used] for each in places], size, strict=True):
        start = values.new_zeros(len(index))
        low, high = (start.scatter_reduce(0, at, values, how, include_self=False) for how in ("amin", "amax"))
        mean = start.scatter_reduce(0, at, values, "mean", include_self=False)
        variance = start.scatter_reduce(0, at, (values - mean[at]).square(), "mean", include_self=False)
        # Values are of the centres of an input's pixels. Of n at equal steps, this is half of such a step.
        reach = (high - low).clamp(min=1e-6)
        half = ((12 * variance / reach.square() - 1) * reach / 4).clamp(min=0)
        edges.append(((low - half).clamp(0, length), (high + half).clamp(0, length)))
    (left, right), (top, bottom) = edges
    return TokenBoxes(index, torch.stack([left, top, right, bottom], 1))
