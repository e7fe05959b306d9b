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
from vitviz.models.watched.sequence import marked_pass
from vitviz.models.watched.verification import VerifiedModule

# By which changes may differ from their sum, relative to the output.
ADDITIVE = 1e-4


def verify_reading(
    pixels: torch.Tensor, verified: VerifiedModule, prefix: Sequence[str]
) -> tuple[bool, tuple[str, ...]]:
    """What the output reads of the tokens behind the last layer's attention.

    An output that adds up what it reads of each token, as a mean does, needs no word: its change with two tokens is the
    sum of its changes with each.

    Args:
        pixels: ``"1 channel height width"``.
        verified: the verified module.
        prefix: names of the tokens that are not patches, in the module's order.

    Returns:
        Whether it reads the token with the name ``"cls"``, and no other; and in words, whether it reads several other
        ones, leaves out the last layer, reads several tokens together, is the same for every picture, or reads the
        picture beside the layers, too.

    Raises:
        ConfigError: it reads one other token than that with the name ``"cls"``, and no patch.
    """
    if verified.pooling_call is not None:
        return False, ()
    output = partial(_marked_output, _before_last_layer(pixels, verified), verified)
    reference, last, count = output(()), len(verified.calls) - 1, len(verified.places[-1].index)
    has_patches = not torch.equal(output(range(len(prefix), count)), reference)
    read = [name for place, name in enumerate(prefix) if not torch.equal(output([place]), reference)]
    if not has_patches and "cls" in prefix and read and "cls" not in read:
        if len(read) > 1:
            # Such as those of YOLOS for detection, beside which its CLS token is read by none.
            return False, (f"the output reads {' and '.join(map(repr, read))}, and not 'cls'",)
        place, others = prefix.index(read[0]), [name for name in prefix if name != "cls"]
        expected = [*others[:place], "cls", *others[place:]]
        raise ConfigError(
            f"prefix={list(prefix)}: of these tokens, the output reads {read[0]!r} alone; expected the name 'cls' for "
            f"what it reads, such as prefix={expected}"
        )
    if not has_patches and not read:
        if torch.equal(_marked_output(_before_last_layer(-pixels, verified), verified, ()), reference):
            return False, ("the output is the same for every picture, as that of a head whose weights are zero",)
        below = f"; end_layer={last - 1} ends maps of all layers below it" if last else ""
        return False, (f"the output does not read layer {last}, the last{below}",) * is_vector(reference)
    if read == ["cls"] and not has_patches:
        pictures = (_marked_output({PICTURE: each}, verified, (), 0) for each in (pixels, -pixels))
        return True, ("the output reads the picture beside the layers, too, which no map of attention shows",) * (
            not verified.others and not torch.equal(*pictures)
        )
    # Other calls of attention are named already.
    if verified.others or not is_vector(reference):
        return False, ()
    first, second, both = (precise(output(tokens)) for tokens in ([count - 2], [count - 1], [count - 2, count - 1]))
    if bool((both - first - second + precise(reference)).abs().max() <= ADDITIVE * both.abs().max().clamp(min=1)):
        return False, ()
    return False, (
        f"behind layer {last}, the output reads several tokens together, and no map shows how they mix there",
    )


def _before_last_layer(pixels: torch.Tensor, verified: VerifiedModule) -> dict[int, Any]:
    """The tokens before the last layer, by the number of their step, so that a pass begins there; else the picture."""
    if verified.stream is None:
        return {PICTURE: pixels}
    program, step = verified.replay.program, verified.stream.steps[-2]
    return {step: program.run({PICTURE: pixels.clone()}, [Result(step)])[0]}


def _marked_output(
    given: Mapping[int, Any], verified: VerifiedModule, tokens: Iterable[int], first: int = -1
) -> torch.Tensor:
    """The output with noise in place of the attention of the last layers from ``first`` on, other noise for tokens."""
    depth, places = len(verified.calls), verified.places
    marks = torch.zeros(depth, len(places[-1].index), dtype=torch.bool)
    marks[-1, list(tokens)] = True
    layers = dict(list(zip(verified.calls, range(depth), strict=True))[first:])
    hooks = verified.replay.hooks(marked_pass(layers, places, marks, []))
    copies = {step: value.clone() if isinstance(value, torch.Tensor) else value for step, value in given.items()}
    return verified.replay.program.run(copies, [verified.replay.program.output], hooks)[0]
