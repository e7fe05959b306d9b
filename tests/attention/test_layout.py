"""Tokens are found by name, by patch and by index, and patches go back to their grid."""

from __future__ import annotations

import re

import pytest
import torch

from vitviz import QueryError, TokenLayout
from vitviz.attention.layout import Query, layer_range
from vitviz.errors.kinds import ConfigError

FIVE = TokenLayout(("cls", "register 1", "register 2", "register 3", "register 4"), 2, 3)
DISTILLED = TokenLayout(("cls", "distillation"), 3, 2)
BARE = TokenLayout((), 3, 5)
ONE_PATCH = TokenLayout(("cls",), 1, 1)
LAYOUTS = {"five prefix tokens": FIVE, "distillation": DISTILLED, "no prefix token": BARE, "one patch": ONE_PATCH}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@pytest.mark.parametrize(
    ("layout", "query", "index"),
    [
        (FIVE, "cls", 0),
        (FIVE, "register 1", 1),
        (FIVE, "register 4", 4),
        (FIVE, (0, 0), 5),
        (FIVE, (0, 2), 7),
        (FIVE, (1, 0), 8),
        (FIVE, (1, 2), 10),
        (FIVE, 0, 0),
        (FIVE, 10, 10),
        (DISTILLED, "distillation", 1),
        (DISTILLED, (2, 1), 7),
        (BARE, (0, 0), 0),
        (BARE, (2, 4), 14),
        (ONE_PATCH, (0, 0), 1),
    ],
)
def test_a_token_is_found_by_name_by_patch_and_by_index(layout: TokenLayout, query: Query, index: int) -> None:
    assert layout.index(query) == index
    assert layout.select(query) == slice(index, index + 1)


@every_layout
def test_every_token_has_one_way_back(layout: TokenLayout) -> None:
    tokens = list(range(layout.token_count))
    assert len(tokens) == layout.prefix_count + layout.patch_count
    names = [*layout.prefix, *(layout.cell(index) for index in tokens[layout.prefix_count :])]
    assert [layout.index(name) for name in names] == tokens
    assert [layout.name(name) for name in names] == [layout.name(index) for index in tokens]
    assert len({layout.name(index) for index in tokens}) == len(tokens)


@every_layout
def test_the_grid_has_every_patch_at_its_place(layout: TokenLayout) -> None:
    grid = layout.grid(torch.arange(layout.token_count))
    assert grid.shape == (layout.grid_height, layout.grid_width)
    for row in range(layout.grid_height):
        for column in range(layout.grid_width):
            assert grid[row, column] == layout.index((row, column))


@pytest.mark.parametrize(
    ("layout", "reader"),
    [(FIVE, "cls"), (DISTILLED, "cls"), (BARE, "patches"), (TokenLayout(("register 1",), 2, 2), "patches")],
)
def test_a_map_starts_from_cls_or_else_from_all_patches(layout: TokenLayout, reader: str) -> None:
    assert layout.default_query == reader


FIVE_HAS = (
    "this model has prefix tokens 'cls', 'register 1', 'register 2', 'register 3', 'register 4', "
    "patches (0, 0) to (1, 2), 'patches' for the mean of all, and token indices 0 to 10"
)
BARE_HAS = (
    "this model has no prefix token, patches (0, 0) to (2, 4), 'patches' for the mean of all, and token indices 0 to 14"
)


@pytest.mark.parametrize(
    ("layout", "query", "message"),
    [
        (FIVE, "distillation", f"token 'distillation': {FIVE_HAS}"),
        (FIVE, "CLS", f"token 'CLS': {FIVE_HAS}; did you mean 'cls'?"),
        (FIVE, "", f"token '': {FIVE_HAS}"),
        (FIVE, (2, 0), f"patch (2, 0): {FIVE_HAS}"),
        (FIVE, (0, 3), f"patch (0, 3): {FIVE_HAS}"),
        (FIVE, (-1, 0), f"patch (-1, 0): {FIVE_HAS}"),
        (FIVE, (0, -1), f"patch (0, -1): {FIVE_HAS}"),
        (FIVE, (0, 0, 0), f"patch (0, 0, 0): {FIVE_HAS}"),
        (FIVE, 11, f"token 11: {FIVE_HAS}"),
        (FIVE, -1, f"token -1: {FIVE_HAS}"),
        (BARE, "cls", f"token 'cls': {BARE_HAS}"),
        (BARE, 15, f"token 15: {BARE_HAS}"),
    ],
)
@pytest.mark.parametrize("ask", ["index", "select", "name"])
def test_a_missing_token_is_refused_with_the_existing_ones(
    layout: TokenLayout, query: Query, message: str, ask: str
) -> None:
    with pytest.raises(QueryError) as raised:
        getattr(layout, ask)(query)
    assert str(raised.value) == message


@pytest.mark.parametrize("index", [0, 4, -1, 11])
def test_only_a_patch_has_a_cell(index: int) -> None:
    with pytest.raises(QueryError, match=f"^token {index} is not a patch: {re.escape(FIVE_HAS)}$"):
        FIVE.cell(index)


@pytest.mark.parametrize(
    ("prefix", "height", "width", "message"),
    [
        (("cls",), 0, 3, "patch grid 0×3: both sides must be at least 1"),
        (("cls",), 3, 0, "patch grid 3×0: both sides must be at least 1"),
        (("cls",), -2, -2, "patch grid -2×-2: both sides must be at least 1"),
        (("cls", "cls"), 2, 2, "prefix tokens ('cls', 'cls'): names must differ"),
    ],
)
def test_an_impossible_layout_is_refused(prefix: tuple[str, ...], height: int, width: int, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        TokenLayout(prefix, height, width)
    assert str(raised.value) == message


def test_layers_are_named_by_the_first_and_the_last() -> None:
    assert [layer_range(2, stop) for stop in (3, 4)] == ["layer 2", "layers 2 to 3"]
