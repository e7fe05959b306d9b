"""What a published checkpoint's name says of its shapes is in its row."""

from __future__ import annotations

import re

import pytest

from vitviz.weights.families.published import published_rows

ROWS = list(
    dict.fromkeys(
        tuple(row[fact] for fact in ("name", "width", "depth", "heads", "patch", "grid"))
        for rows in published_rows().values()
        for row in rows
    )
)
# Width, depth and heads of the sizes that have names.
SIZES = {
    "t": (192, 12, 3),
    "s": (384, 12, 6),
    "b": (768, 12, 12),
    "l": (1024, 24, 16),
    "h": (1280, 32, 16),
    "g": (1536, 40, 24),
}
SIZE = re.compile(r"(?:vit|deit|vit-mae|vit-msn)-?([tsblhg])(?:iny|mall|ase|arge|uge)?(?=[-\d]|$)")
PATCH = re.compile(r"(?:patch|vit[sblg])(\d+)")
PIXELS = re.compile(r"-(224|384)(?!\d)")


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_name_says_what_its_row_says(row: tuple[str, int, int, int, int, int]) -> None:
    name, width, depth, heads, patch, grid = row
    if found := PATCH.search(name):
        assert int(found[1]) == patch
    if pixels := PIXELS.search(name):
        assert int(pixels[1]) // patch == grid
    if size := SIZE.search(name):
        assert (width, depth, heads) == SIZES[size[1]]
    assert width % heads == 0


def test_the_test_above_reads_most_names() -> None:
    for pattern, share in ((PATCH, 0.75), (SIZE, 0.95), (PIXELS, 0.4)):
        assert sum(pattern.search(row[0]) is not None for row in ROWS) > share * len(ROWS) > 30 * share
