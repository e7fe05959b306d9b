"""The order of the tokens: prefix tokens, then the patch grid, and the conversion between tokens and patches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from vitviz.errors.arguments import integer_or_none, pair_or_none
from vitviz.errors.kinds import ConfigError, QueryError
from vitviz.errors.messages import describe, did_you_mean, several

Query = str | int | tuple[int, int]
"""A prefix token's name, a patch's ``(row, column)``, ``"patches"`` for the mean of all, or a token index."""

Prefix = int | Sequence[str]
"""The tokens before the patches: their names, or their number, where they are the CLS token and registers."""

PATCHES = "patches"


def index_from_end(kind: str, number: int, count: int, has: str = "this model has") -> int:
    """The index from 0 for a number that counts from 0, or from the end as ``-1``.

    Args:
        kind: what is counted, for messages: ``"layer"`` or ``"head"``.
        number: number of the layer or head.
        count: how many there are.
        has: whose they are, for messages.

    Raises:
        QueryError: no layer or head has this number.
    """
    index = integer_or_none(number)
    if index is None or not -count <= index < count:
        several = f"{kind}s 0 to {count - 1} (or -{count} to -1 from the end)"
        legal = {0: f"no {kind}s", 1: f"{kind} 0 alone"}.get(count, several)
        expected = "expected a whole number; " if index is None else ""
        raise QueryError(f"{kind} {describe(number)}: {expected}{has} {legal}")
    return index % count


def indices_from_end(kind: str, numbers: Iterable[int] | None, count: int) -> list[int]:
    """As :func:`index_from_end` of several numbers, or all indices for None.

    Raises:
        QueryError: no layer or head has one of the numbers, or these are no numbers.
    """
    listed = range(count) if numbers is None else list(numbers) if isinstance(numbers, Iterable) else []
    if not listed:
        raise QueryError(f"{kind}s = {describe(numbers)}: expected at least one number in a list, such as [0, -1]")
    return [index_from_end(kind, number, count) for number in listed]


def layer_span(start_layer: int, end_layer: int, depth: int, lowest: int = 0) -> range:
    """The layers from ``start_layer`` to ``end_layer``, both counted in; each counts from 0, or from the end as ``-1``.

    Args:
        start_layer, end_layer: numbers of layers.
        depth: number of layers of the model.
        lowest: the lowest layer there is, at which a lower start is raised.

    Raises:
        QueryError: the model has no such layer, or the end is below the start.
    """
    start = max(index_from_end("layer", start_layer, depth), lowest)
    end = index_from_end("layer", end_layer, depth)
    if end < start:
        expected = f"expected a layer from {start} to {depth - 1}"
        raise QueryError(f"end_layer {end}: below the start layer, {start}; {expected}")
    return range(start, end + 1)


def numbered(kind: str, index: int, count: int) -> str:
    """A layer or head as captions name it: ``"layer 5 of 0–5"``.

    vitviz counts from 0 everywhere, so that the number on the screen is the one that arguments, options and links take.
    The range shows this; "layer 5 of 6" would be read as the fifth layer.
    """
    return f"{kind} {index} of 0–{count - 1}" if count > 1 else f"{kind} {index}"


def layer_range(start: int, stop: int) -> str:
    """The layers from ``start`` up to, but not including, ``stop``: ``"layers 2 to 5"``."""
    return f"layers {start} to {stop - 1}" if stop - start > 1 else f"layer {start}"


def patch_grid(image_size: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of patches in an image.

    Args:
        image_size, patch_size: height and width in pixels.

    Raises:
        ConfigError: a side of the image is not a multiple of the patch.
    """
    (height, width), (patch_height, patch_width) = image_size, patch_size
    if height % patch_height or width % patch_width or not height or not width:
        raise ConfigError(
            f"image of {height}×{width} pixels (height × width): both sides must be a multiple "
            f"of the patch, {patch_height}×{patch_width}"
        )
    return height // patch_height, width // patch_width


def prefix_names(prefix: Prefix) -> tuple[str, ...]:
    """The names of the tokens before the patches; of a number of them, the CLS token and registers.

    Raises:
        ConfigError: ``prefix`` is neither a number nor a list of different names.
    """
    count = integer_or_none(prefix)
    if count is not None and count >= 0:
        return ("cls", *(f"register {number}" for number in range(1, count)))[:count]
    if isinstance(prefix, list | tuple) and all(isinstance(name, str) for name in prefix):
        if len(set(prefix)) != len(prefix):
            raise ConfigError(f"prefix = {several(list(prefix))}: names must differ")
        return tuple(prefix)
    expected = "a list of names, such as ['cls', 'register 1'], or their number"
    raise ConfigError(f"prefix = {describe(prefix)}: expected {expected}")


@dataclass(frozen=True)
class TokenLayout:
    """The order of a sequence of tokens: prefix tokens first, then the patches row by row.

    No other code in vitviz distinguishes prefix tokens from patches.

    Args:
        prefix: names of the prefix tokens in order, such as ``("cls", "register 1")``; empty for none.
        grid_height: patches from top to bottom.
        grid_width: patches from left to right.

    >>> analysis.trace.layout.index((0, 0)), analysis.trace.layout.name(5)
    (5, 'patch (0, 0)')
    """

    prefix: tuple[str, ...]
    grid_height: int
    grid_width: int

    def __post_init__(self) -> None:
        if self.grid_height < 1 or self.grid_width < 1:
            raise ConfigError(f"patch grid {self.grid_height}×{self.grid_width}: both sides must be at least 1")
        if len(set(self.prefix)) != len(self.prefix):
            raise ConfigError(f"prefix tokens {self.prefix}: names must differ")

    @property
    def prefix_count(self) -> int:
        return len(self.prefix)

    @property
    def patch_count(self) -> int:
        return self.grid_height * self.grid_width

    @property
    def token_count(self) -> int:
        return self.prefix_count + self.patch_count

    def index(self, query: Query) -> int:
        """The token index of a prefix token's name, a patch's ``(row, column)`` or a token index.

        A patch may also be a list or an array of two whole numbers.

        Raises:
            QueryError: the model has no such token.
        """
        if isinstance(query, str):
            if query not in self.prefix:
                near = did_you_mean(query, (*self.prefix, PATCHES))
                raise QueryError(f"token {query!r}: this model has {self._legal()}{near}")
            return self.prefix.index(query)
        patch, number = pair_or_none(query), integer_or_none(query)
        if number is not None and 0 <= number < self.token_count:
            return number
        if patch is not None and 0 <= patch[0] < self.grid_height and 0 <= patch[1] < self.grid_width:
            return self.prefix_count + patch[0] * self.grid_width + patch[1]
        kind = "patch" if patch is not None or isinstance(query, tuple | list) else "token"
        raise QueryError(f"{kind} {describe(query)}: this model has {self._legal()}")

    def select(self, query: Query) -> slice:
        """The tokens that a query selects: one, or all patches for ``"patches"``, over which maps take the mean.

        Raises:
            QueryError: the model has no such token.
        """
        if isinstance(query, str) and query == PATCHES:
            return slice(self.prefix_count, self.token_count)
        index = self.index(query)
        return slice(index, index + 1)

    @property
    def default_query(self) -> Query:
        """The default query, which is the CLS token, or all patches if there is none."""
        return "cls" if "cls" in self.prefix else PATCHES

    def name(self, query: Query) -> str:
        """The name in captions: ``"the CLS token"``, ``"register 1"``, ``"patch (2, 3)"``, ``"the mean patch"``."""
        if isinstance(query, str) and query == PATCHES:
            return "the mean patch"
        index = self.index(query)
        if index < self.prefix_count:
            name = self.prefix[index]
            return "the CLS token" if name == "cls" else f"the {name} token" if name == "distillation" else name
        return "patch ({}, {})".format(*self.cell(index))

    def query_name(self, query: Query) -> str:
        """The name in captions, which says of a patch's bare number what it counts: ``"patch (2, 3) = token 16"``."""
        number = integer_or_none(query)
        return self.name(query) + (f" = token {number}" if number is not None and number >= self.prefix_count else "")

    def cell(self, index: int) -> tuple[int, int]:
        """The ``(row, column)`` of a patch's token index.

        Raises:
            QueryError: the token is not a patch.
        """
        if not self.prefix_count <= index < self.token_count:
            raise QueryError(f"token {index} is not a patch: this model has {self._legal()}")
        row, column = divmod(index - self.prefix_count, self.grid_width)
        return row, column

    def grid(self, tokens: torch.Tensor) -> torch.Tensor:
        """The patches of a per-token tensor: ``"... token"`` to ``"... grid_height grid_width"``."""
        return tokens[..., self.prefix_count :].unflatten(-1, (self.grid_height, self.grid_width))

    def _legal(self) -> str:
        prefix = f"prefix tokens {', '.join(map(repr, self.prefix))}" if self.prefix else "no prefix token"
        rows, columns = self.grid_height - 1, self.grid_width - 1
        return (
            f"{prefix}, patches (0, 0) to ({rows}, {columns}), {PATCHES!r} for the mean of all, "
            f"and token indices 0 to {self.token_count - 1}"
        )
