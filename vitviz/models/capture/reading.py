"""Verifies that the token named CLS is the one that the module's output reads.

Modules have their CLS token first, behind their registers, or last, and only their own code says which. Behind the last
layer's attention no tokens mix, so the output changes with noise in a token there exactly if it reads this token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from vitviz.errors.kinds import ConfigError
from vitviz.models.capture.interception import Interception
from vitviz.models.capture.sequence import MarkedPass
from vitviz.models.capture.verification import VerifiedCapture


def verify_cls(
    run: Callable[[torch.Tensor], torch.Tensor],
    pixels: torch.Tensor,
    verified: VerifiedCapture,
    prefix: Sequence[str],
) -> bool:
    """Verify the name of the CLS token, if the output reads some of the tokens that are not patches, and no patch.

    Args:
        run: the module's forward pass.
        pixels: ``"1 channel height width"``.
        verified: the module's capture.
        prefix: names of the tokens that are not patches, in the module's order.

    Returns:
        Whether the output reads the token with the name ``"cls"``, and no other.

    Raises:
        ConfigError: it reads other tokens than the one with the name ``"cls"``.
    """
    if "cls" not in prefix or verified.pooling_call is not None:
        return False
    depth, places = len(verified.calls), verified.places

    def output(tokens: Iterable[int]) -> torch.Tensor:
        marks = torch.zeros(depth, len(places[-1].index), dtype=torch.bool)
        marks[-1, list(tokens)] = True
        with Interception(MarkedPass({verified.calls[-1]: depth - 1}, places, marks)):
            return run(pixels)

    reference = output(())
    cls, patches = prefix.index("cls"), range(len(prefix), len(places[-1].index))
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
