"""Leaves tokens out of attention, such as outlier patches or attention sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from vitviz.attention.sinks import outlier_patches, sink_patches
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.arguments import pair_or_none
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices, describe, did_you_mean, several

Exclusion = Literal["outliers", "sinks"]
# Not any iterable of tokens, since a misspelt name is one of strings to a type checker.
Exclude = Exclusion | list[Any] | tuple[Any, ...] | None
"""A name in :data:`EXCLUSIONS`, a list of tokens, or None for no exclusion."""

EXCLUSIONS: dict[Exclusion, tuple[str, Callable[[AttentionTrace], list[int]]]] = {
    "outliers": ("outlier patches", outlier_patches),
    "sinks": ("sink patches", sink_patches),
}
"""Exclusions by name: their name in captions, and the function that returns the tokens for a trace."""
MAX_NAMED_TOKENS = 4


def exclude_tokens(trace: AttentionTrace, exclude: Exclude) -> tuple[AttentionTrace, str]:
    """The trace without some keys, and a description for captions.

    Args:
        trace: trace of one image.
        exclude: as in :func:`vitviz.attribution.attention`.

    Returns:
        :meth:`vitviz.AttentionTrace.without` these tokens, and a phrase such as ``"without 1 outlier patch: (0, 3)"``.

    Raises:
        MethodError: there is no such exclusion, the trace has no norms for it, or no patch would be left.
        QueryError: the model has no such token.
    """
    layout = trace.layout
    if exclude is None:
        return trace, ""
    if isinstance(exclude, str) and exclude in EXCLUSIONS:
        plural, rule = EXCLUSIONS[exclude]
        tokens = rule(trace)
        if not tokens:
            return trace, f"without {plural}, of which there are none"
        kind = plural if len(tokens) > 1 else plural.removesuffix("es")
        places = several([str(layout.cell(token)) for token in tokens], MAX_NAMED_TOKENS)
        description = f"without {len(tokens)} {kind}: {places}"
    else:
        tokens = _listed_tokens(trace, exclude)
        names = several([layout.name(token) for token in tokens], MAX_NAMED_TOKENS)
        description = f"without {names}"
    if len(set(tokens) - set(range(layout.prefix_count))) == layout.patch_count:
        raise MethodError(f"exclude = {describe(exclude)}: all {layout.patch_count} patches left out; none would show")
    return trace.without(tokens), description


def _listed_tokens(trace: AttentionTrace, exclude: object) -> list[int]:
    # A pair could be one patch or two tokens.
    is_pair = isinstance(exclude, tuple) and pair_or_none(exclude) is not None
    if isinstance(exclude, str) or is_pair or not isinstance(exclude, Iterable):
        expected = f"expected {choices(EXCLUSIONS)}, or a list of tokens such as [(0, 3), 'cls']"
        raise MethodError(f"exclude = {describe(exclude)}: {expected}{did_you_mean(exclude, EXCLUSIONS)}")
    tokens = sorted({trace.layout.index(query) for query in exclude})
    if not tokens:
        raise MethodError("exclude = an empty list: expected at least one token, or None for no exclusion")
    return tokens
