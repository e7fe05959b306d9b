"""Which part of the user's picture each token of a network that writes stands for.

Attention mixes tokens, so no gradient passes through it. What then still leads from the picture to a token's key is a
part of the picture that the token begins with: gradients are zero exactly where nothing leads, whatever merges,
shuffles, cuts or pads the picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image

from vitviz.errors.kinds import ConfigError
from vitviz.language.coordinates import measure_coordinates, numbers_of, sampled, with_numbers
from vitviz.language.generation import generate
from vitviz.language.prompts import Prompt
from vitviz.language.word_maps import PictureGrid
from vitviz.models.watched.attention_operations import operands_of
from vitviz.models.watched.finder import AttentionFinder
from vitviz.models.watched.module_state import device_of
from vitviz.models.watched.program import PICTURE
from vitviz.models.watched.recorder import record

# The least half side of a token's part.
MIN_HALF_PX = 0.01
QUERY_TOKENS = (
    "no token of its decoder stands for one part of the picture, as where a few queries read it all, or where it is "
    "written in codes; expected a network that hands patches on, merged or not"
)


def measure_places(prompt: Prompt, inputs: Mapping[str, Any], call: int) -> tuple[PictureGrid, ...]:
    """The tokens of each picture, in their order.

    Args:
        prompt: pictures and question.
        inputs: those of the network for it.
        call: number of the first call of attention whose keys are the picture's tokens, of a pass.

    Raises:
        ConfigError: the tokens stand for no parts of their own, or the places cannot be measured.
    """
    owner, is_reached, is_shared = _owners(*_scores(prompt, inputs, call))
    grids = []
    for number, picture in enumerate(prompt.pictures):
        x, y, is_painted = measure_coordinates(prompt, number)
        is_used = is_reached & is_painted
        if not bool(is_used.any()):
            raise ConfigError(QUERY_TOKENS)
        share = float(is_shared[is_used].float().mean())
        if share:
            raise ConfigError(
                f"{share:.0%} of its input leads to several tokens at once, as where convolutions overlap"
            )
        grids.append(_grid(picture, owner[is_used].long(), (x[is_used], y[is_used])))
    return tuple(grids)


def _scores(prompt: Prompt, inputs: Mapping[str, Any], call: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of the input, and a number for the key of each token of a call, with what leads to it but attention.

    Raises:
        ConfigError: the keys are not seen, or depend on the picture by attention alone.
    """
    finder = AttentionFinder(has_picture=False)
    # Inputs of all types in one row, as the processor makes them.
    numbers = numbers_of(inputs).to(device_of(prompt.model.module))
    program, _ = record(lambda flat: generate(prompt, with_numbers(inputs, flat), 1)[1], numbers, finder)
    *before, last = finder.found[: call + 1]
    number = last.step if last.is_fused else last.scores
    if number is None:
        raise ConfigError("the keys of its attention are not seen: no place of a token can be measured")
    step = program.steps[number]
    reference = step.args[1] if last.is_fused else operands_of(step, step.args)[not last.is_flipped]
    for attention in before:
        step = program.steps[attention.step]
        step.operator = torch.no_grad()(step.operator)
    with torch.enable_grad():
        numbers.requires_grad_()
        # The keys may be a tensor into which their parts are written.
        [keys] = program.run({PICTURE: numbers}, [reference], also=program.steps[number].hidden)
        # A product of its own takes them with the features first.
        keys = keys.movedim(-2 if last.is_fused or last.is_flipped else -1, 0).flatten(1)
        scores = keys @ torch.randn(keys.shape[1], generator=torch.Generator().manual_seed(0)).to(keys)
    if not scores.requires_grad:
        raise ConfigError(QUERY_TOKENS)
    return numbers, scores


def _owners(numbers: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The token to which each sampled number leads, whether it leads to any, and whether to several.

    The gradient of the sum of some tokens is not zero where one of them is reached. Tokens are summed by the digits of
    their numbers, and by those of the count of their zeros: of a number that reaches two tokens, these digits
    contradict each other (Berger 1961, "A note on error detection codes for asymmetric channels").
    """
    tokens = torch.arange(len(scores))
    digits = max(1, (len(scores) - 1).bit_length())
    zeros = digits - torch.stack([tokens >> digit & 1 for digit in range(digits)]).sum(0)
    codes, found = (tokens | zeros << digits).int(), torch.zeros(len(sampled(numbers)), dtype=torch.int32)
    for digit in range(digits + digits.bit_length()):
        is_summed = (codes >> digit & 1).to(scores)
        [gradient] = torch.autograd.grad(scores, numbers, is_summed, retain_graph=True)
        found.add_((sampled(gradient) != 0).cpu(), alpha=1 << digit)
    owner = (found & (1 << digits) - 1).clamp_(max=len(codes) - 1)
    return owner, found != 0, codes[owner] != found


def _grid(picture: Image.Image, owner: torch.Tensor, places: Sequence[torch.Tensor]) -> PictureGrid:
    """The tokens of a picture, by the places of the centres of the input's pixels that each of them owns."""
    index, at = owner.unique(return_inverse=True)
    edges = []
    for values, length in zip(places, picture.size, strict=True):
        start = values.new_zeros(len(index))
        ways = ("amin", "amax", "mean")
        low, high, mean = (start.scatter_reduce(0, at, values, way, include_self=False) for way in ways)
        variance = start.scatter_reduce(0, at, (values - mean[at]).square(), "mean", include_self=False)
        # Of n at equal steps, this is half of such a step.
        reach = (high - low).clamp(min=1e-6)
        half = ((12 * variance / reach.square() - 1) * reach / 4).clamp(min=MIN_HALF_PX)
        edges.append(torch.stack([(low - half).clamp(0, length), (high + half).clamp(0, length)], 1))
    return PictureGrid(picture, index, torch.stack(edges, 2).flatten(1))
