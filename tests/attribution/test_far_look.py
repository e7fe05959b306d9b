"""The far look against its definition, written as loops; sinks, near places and plain sky do not count."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.node import in_node
from vitviz import Analysis, AttentionTrace
from vitviz.attribution.far_look import contrast, far_look


def planted(
    height: int, width: int, looks: list[tuple[tuple[int, int], tuple[int, int], float]], sink: tuple[int, int]
) -> AttentionTrace:
    """One layer and head: each square gives 0.3 to the sink and its other attention to all, but for these looks.

    A look goes to the corners of a place, so that no other place has all of it.
    """
    count = height * width
    weights = torch.full((1, 1, count, count), 0.7 / count)
    weights[..., sink[0] * width + sink[1]] += 0.3
    for query, key, share in looks:
        row = weights[0, 0, query[0] * width + query[1]]
        row *= 1 - share
        for down, right in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
            row[(key[0] + down) * width + key[1] + right] += share / 4
    return AttentionTrace.from_weights([weights], 0, (height, width))


def test_the_farthest_strong_look_is_found_and_a_sink_and_a_near_place_are_not() -> None:
    noise = torch.rand(1, 3, 64, 96)
    looks = [((1, 1), (6, 9), 0.5), ((4, 4), (4, 5), 0.9), ((7, 0), (1, 10), 0.4)]
    look = far_look(planted(8, 12, looks, sink=(3, 10)), noise)
    assert look is not None
    assert (look.layer, look.head, look.query, look.place) == (0, 0, (1, 1), (6, 9))
    assert look.share == pytest.approx(0.5 + 0.5 * 0.7 * 9 / 96, abs=1e-5)
    assert look.excess == pytest.approx(look.share - 0.7 * 9 / 96, abs=1e-5)
    start = (
        f"Patch {look.query} gives {look.share:.0%} of its attention to the 3 × 3 patches around {look.place}, far from"
    )
    assert str(look) == f"{start} it, in layer {look.layer}, head {look.head}."


def test_a_look_through_empty_sky_counts_less_than_one_between_things() -> None:
    picture = torch.rand(1, 3, 64, 96)
    picture[:, :, :32] = 0.5
    looks = [((0, 1), (1, 9), 0.8), ((6, 1), (6, 9), 0.6)]
    trace = planted(8, 12, looks, sink=(3, 10))
    found, anywhere = far_look(trace, picture), far_look(trace, torch.full((1, 3, 64, 96), 0.5))
    assert found is not None
    assert anywhere is not None
    assert (found.query, anywhere.query) == ((6, 1), (0, 1))


def test_a_grid_without_far_places_has_none() -> None:
    assert far_look(AttentionTrace.from_weights(torch.ones(2, 3, 1, 1), 0), torch.rand(1, 3, 8, 8)) is None


def test_it_is_the_best_of_all_layers_heads_and_squares(example: Analysis) -> None:
    trace, look = example.trace, example.far_look()
    assert look is not None
    assert (look.layer, look.head, look.query, look.place) == (6, 5, (6, 10), (5, 5))
    first, width = trace.layout.prefix_count, trace.layout.grid_width

    def share(layer: int, head: int, query: int, place: tuple[int, int]) -> float:
        rows = [row for row in range(place[0] - 1, place[0] + 2) if 0 <= row < trace.layout.grid_height]
        columns = [column for column in range(place[1] - 1, place[1] + 2) if 0 <= column < width]
        weights = trace.weights(layer)[head, first + query]
        return float(sum(weights[first + row * width + column] for row in rows for column in columns))

    query = look.query[0] * width + look.query[1]
    assert look.share == pytest.approx(share(look.layer, look.head, query, look.place), abs=1e-5)
    others = sorted(share(look.layer, look.head, each, look.place) for each in range(trace.layout.patch_count))
    # The lower of the two in the middle.
    assert look.share - look.excess == pytest.approx(others[(len(others) - 1) // 2], abs=1e-5)
    assert math.dist(look.query, look.place) >= trace.layout.grid_height / 3


def test_attention_of_ones_own_has_it_too() -> None:
    trace = planted(8, 12, [((1, 1), (6, 9), 0.5)], sink=(3, 10))
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8))
    look = Analysis.of(trace, picture).far_look()
    assert look is not None and (look.query, look.place) == ((1, 1), (6, 9))


def test_of_a_large_grid_some_rows_and_columns_ask() -> None:
    looks = [((row, column), (40, 50), 0.5) for row in range(3, 12) for column in range(2, 8)]
    look = far_look(planted(48, 60, looks, sink=(0, 0)), torch.rand(1, 3, 96, 120))
    assert look is not None
    assert look.place == (40, 50)
    # Of every three, the one in the middle.
    assert look.query in [(row, column) for row in (4, 7, 10) for column in (4, 7)]
    assert look.share == pytest.approx(0.5 + 0.5 * 0.7 * 9 / 2880, abs=1e-5)


ON_DEVICE = """({ weights, pixels, rows, columns, height, width }) => {
    const shape = { layers: 1, heads: weights.length, rows, columns, prefix: ["cls"] };
    const row = (layer, head, query, filled) => filled.set(weights[head][query]);
    const contrasts = patchContrasts(Float32Array.from(pixels), { rows, columns, height, width });
    return [[...contrasts], farLookOf({ tokens: rows * columns + 1, shape, row }, contrasts)];
}"""


@pytest.mark.process
@pytest.mark.parametrize("plain", ["none", "half", "all"])
def test_the_device_finds_the_same_where_parts_of_a_large_grid_are_plain(plain: str) -> None:
    rows, columns, size = 24, 20, 2
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(1, 2, rows * columns + 1, rows * columns + 1, generator=generator).mul(2).softmax(-1)
    pixels = torch.rand(1, 3, rows * size, columns * size, generator=generator)
    pixels[:, :, : {"none": 0, "half": rows * size // 2, "all": rows * size}[plain]] = 0.3
    trace = AttentionTrace.from_weights([weights], 1, (rows, columns))
    value = {
        **{"weights": weights[0].tolist(), "pixels": pixels.flatten().tolist()},
        **{"rows": rows, "columns": columns, "height": size, "width": size},
    }
    names = {"device/far_look.js": "farLookOf, patchContrasts"}
    contrasts, found = in_node(names, ON_DEVICE, value)
    np.testing.assert_allclose(contrasts, contrast(pixels, trace.layout), atol=1e-5)
    look = far_look(trace, pixels)
    assert look is not None
    for name, expected in asdict(look).items():
        assert found[name] == pytest.approx(list(expected) if isinstance(expected, tuple) else expected, abs=1e-5)
