"""Verifies that the token named CLS is the one that the module's output reads.

Modules have their CLS token first, behind their registers, or last, and only their own code says which. Behind the last
layer's attention no tokens mix, so the output changes with noise in a token there exactly if it reads this token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from vitviz.attention.precision import precise
from vitviz.errors.kinds import ConfigError
from vitviz.models.watched.outputs import is_vector
from vitviz.models.watched.program import PICTURE, Result
from vitviz.models.watched.sequence import MarkedPass
from vitviz.models.watched.verification import VerifiedModule

# By which changes may differ from their sum, relative to the output.
ADDITIVE = 1e-4


def verify_cls(pixels: torch.Tensor, verified: VerifiedModule, prefix: Sequence[str]) -> bool:
    """Verify the name of the CLS token, if the output reads some of the tokens that are not patches, and no patch.

    Args:
        pixels: ``"1 channel height width"``.
        verified: the verified module.
        prefix: names of the tokens that are not patches, in the module's order.

    Returns:
        Whether the output reads the token with the name ``"cls"``, and no other.

    Raises:
        ConfigError: it reads other tokens than the one with the name ``"cls"``.
    """
    if "cls" not in prefix or verified.pooling_call is not None:
        return False
    output = partial(_marked_output, _before_last_layer(pixels, verified), verified)
    reference = output(())
    cls, patches = prefix.index("cls"), range(len(prefix), len(verified.places[-1].index))
    if torch.equal(output([*patches, *(place for place in range(len(prefix)) if place != cls)]), reference):
        return not torch.equal(output([cls]), reference)
    if not torch.equal(output(patches), reference):
        return False
    read = [place for place in range(len(prefix)) if not torch.equal(output([place]), reference)]
    if read and cls not in read:
        others = [name for name in prefix if name != "cls"]
        names = " and ".join(repr(prefix[place]) for place in read)
        expected = [*others[: read[0]], "cls", *others[read[0] :]]
        found = f"prefix={list(prefix)}: of these tokens, the output reads {names} alone"
        raise ConfigError(f"{found}; expected the name 'cls' for what it reads, such as prefix={expected}")
    return False


def describe_reading(pixels: torch.Tensor, verified: VerifiedModule, reads_cls: bool) -> tuple[str, ...]:
    """Whether the output leaves out the last layer, or reads several tokens together, in words.

    Arguments as of :func:`verify_cls`, and its result. An output that adds up what it reads of each token, as a mean
    does, needs no word: its change with two tokens is the sum of its changes with each.
    """
    last, count = len(verified.calls) - 1, len(verified.places[-1].index)
    if reads_cls or verified.pooling_call is not None:
        return ()
    output = partial(_marked_output, _before_last_layer(pixels, verified), verified)
    if not is_vector(reference := output(())):
        return ()
    if torch.equal(output(range(count)), reference):
        below = f"; end_layer={last - 1} ends maps of all layers below it" if last else ""
        return (f"the output does not read layer {last}, the last{below}",)
    if verified.others:
        # They are named already.
        return ()
    first, second, both = (precise(output(tokens)) for tokens in ([count - 2], [count - 1], [count - 2, count - 1]))
    excess = both - first - second + precise(reference)
    if bool(excess.abs().max() <= ADDITIVE * both.abs().max().clamp(min=1)):
        return ()
    return (f"behind layer {last}, the output reads several tokens together, and no map shows how they mix there",)


def _before_last_layer(pixels: torch.Tensor, verified: VerifiedModule) -> dict[int, Any]:
    """The tokens before the last layer, by the number of their step, so that a pass begins there; else the picture."""
    if verified.stream is None:
        return {PICTURE: pixels}
    program, step = verified.replay.program, verified.stream.steps[-2]
    return {step: program.run({PICTURE: pixels.clone()}, [Result(step)])[0]}


def _marked_output(given: Mapping[int, Any], verified: VerifiedModule, tokens: Iterable[int]) -> torch.Tensor:
    """The output with noise in place of the last layer's attention, and other noise for some tokens."""
    depth, places = len(verified.calls), verified.places
    marks = torch.zeros(depth, len(places[-1].index), dtype=torch.bool)
    marks[-1, list(tokens)] = True
    hooks = verified.replay.hooks(MarkedPass({verified.calls[-1]: depth - 1}, places, marks))
    copies = {step: value.clone() if isinstance(value, torch.Tensor) else value for step, value in given.items()}
    program = verified.replay.program
    [output] = program.run(copies, [program.output], hooks)
    return output
