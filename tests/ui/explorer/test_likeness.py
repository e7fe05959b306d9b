"""Colours, cosines and matches that the page computes are those of the library, to the precision of float16."""

from __future__ import annotations

import base64

import numpy as np
import pytest

import vitviz
from tests.support.example import ASSETS
from tests.support.node import in_node
from vitviz import Analysis, Model
from vitviz.ui.facts import outliers
from vitviz.ui.packs import features_packs

# Steps of a colour's 255, and of a cosine.
COLOUR_STEPS, COSINE = 2, 2e-3

COMPUTED = """async ({ files, left_out, asked }) => {
    const pictures = files.map((text, index) => {
        const { vectors } = readPack(Uint8Array.from(Buffer.from(text, "base64")).buffer);
        return { vectors, inliers: range(vectors.shape[0]).filter((patch) => !left_out[index].includes(patch)) };
    });
    const pause = async () => {}, basis = await basisOf(pictures, pause), vectors = pictures.map((each) => each.vectors);
    return {
        matches: await matchesOf(pictures, pause), share: basis.share, colours: vectors.map((each) => coloursOf(each, basis)),
        cosines: vectors.map((each) => [...cosines(each, vectors[0], asked)]),
    };
}"""
IMPORTS = {"packs.js": "readPack", "numbers.js": "range", "likeness.js": "basisOf, coloursOf, cosines, matchesOf"}


@pytest.fixture(scope="module")
def pair(bundled: Model) -> list[Analysis]:
    """Two pictures, of grids of two shapes."""
    return [
        vitviz.analyze(ASSETS / "chelsea.jpg", bundled, fit="native"),
        vitviz.analyze(ASSETS / "astronaut.jpg", bundled),
    ]


@pytest.mark.parametrize("layer", [2, 5])
def test_colours_cosines_and_matches_are_those_of_the_library(pair: list[Analysis], layer: int) -> None:
    files = [dict(features_packs(each, f"features {layer}"))[f"features {layer}"] for each in pair]
    found_outliers = [outliers(each.trace) for each in pair]
    columns = [each.trace.layout.grid_width for each in pair]
    left_out = [
        [] if each is None else [row * width + column for row, column in each["patches"]]
        for each, width in zip(found_outliers, columns, strict=True)
    ]
    asked = 6, 9
    value = {
        "files": [base64.b64encode(each).decode() for each in files],
        "left_out": left_out,
        "asked": asked[0] * columns[0] + asked[1],
    }
    found = in_node(IMPORTS, COMPUTED, value)
    maps = vitviz.components(pair, layer)
    assert found["share"] == pytest.approx(float(maps.basis.shares.sum()), abs=1e-3)
    for colours, expected in zip(found["colours"], maps, strict=True):
        off = np.abs(np.array(colours) - expected.colours.flatten(0, 1).numpy())
        assert off.max() * 255 <= COLOUR_STEPS
    for cosines, other in zip(found["cosines"], [None, pair[1]], strict=True):
        expected_map = pair[0].similarity(asked, other, layer).values.flatten().numpy()
        np.testing.assert_allclose(cosines, expected_map, atol=COSINE)
    matches = {
        tuple(row * width + column for (row, column), width in zip(each.patches, columns, strict=True)): each.score
        for each in vitviz.matches(*pair, layer=layer)
    }
    computed = {tuple(each["patches"]): each["score"] for each in found["matches"]}
    # Rounded, two squares that are equally alike may change their places.
    assert len(matches) > 10 and len(matches.keys() ^ computed.keys()) <= 2
    for each in matches.keys() & computed.keys():
        assert computed[each] == pytest.approx(matches[each], abs=COSINE)
    assert list(computed.values()) == sorted(computed.values(), reverse=True)
