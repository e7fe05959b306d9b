"""The page computes and writes numbers as the library does."""

from __future__ import annotations

import base64

import numpy as np
import pytest

import vitviz
from tests.support.example import EXAMPLE
from tests.support.node import in_node
from tests.ui.explorer.page_driver import HEADS, LAYERS, SHAPES, made
from tests.ui.explorer.test_explorer_files import expected_map
from vitviz.attribution.rollout import rollout_matrix
from vitviz.errors.number_text import digits, percent
from vitviz.ui.packs import file_names, pack

WRITTEN = {
    0.0: ("0", "0%"),
    0.916: ("0.916", "91.6%"),
    1.0: ("1", "100.0%"),
    0.0005: ("0.0005", "0.05%"),
    9.53e-5: ("9.53e-5", "0.01%"),
    12345.0: ("12300", "1234500.0%"),
    2.125: ("2.13", "212.5%"),
    float("nan"): ("–", "–"),
}


def test_numbers_have_three_digits_and_probabilities_are_percentages() -> None:
    assert {value: (digits(value), percent(value)) for value in WRITTEN} == WRITTEN
    assert digits(-0.02164) == "-0.0216" and digits(-1e6) == "-1.00e+6" and digits(99999) == "100000"


def test_the_page_writes_the_same() -> None:
    rng = np.random.default_rng(0)
    some = 10 ** rng.uniform(-12, 8, 3000)
    ties = np.arange(-40, 41) / 8
    values = [
        *some.tolist(),
        *(-some[:500]).tolist(),
        *ties.tolist(),
        *(np.arange(1200) / 1000).tolist(),
        0.0,
        1e5,
        1e-4,
    ]
    found = in_node({"numbers.js": "digits"}, "(values) => values.map(digits)", values)
    assert found == [digits(value) for value in values]
    shares = [value for value in values if value >= 0]
    found = in_node({"numbers.js": "percent"}, "(values) => values.map(percent)", shares)
    assert found == [percent(value) for value in shares]


COMPUTED = """({ facts, files, asked, tokens }) => {
    const bytes = (text) => Uint8Array.from(Buffer.from(text, "base64")).buffer;
    const packs = new Map(Object.entries(files).map(([name, text]) => [name, readPack(bytes(text))]));
    const attention = new Attention(facts, packs);
    return [asked.map((each) => [...attention.map(...each)]), tokens.map((token) => [...attention.rollout(token)])];
}"""


@pytest.mark.parametrize("name", ["cifar", "registers"])
def test_attention_and_rollout_are_those_of_the_library(name: str) -> None:
    analysis = vitviz.analyze(EXAMPLE, made(*SHAPES[name]))
    trace, layout = analysis.trace, analysis.trace.layout
    facts = {"prefix": layout.prefix, "rows": layout.grid_height, "columns": layout.grid_width, "heads": HEADS}
    tokens = [0, layout.prefix_count, layout.token_count - 1, layout.token_count // 2]
    ways = [(head, "row") for head in (*range(HEADS), "mean", "max", "min")] + [
        (head, "column") for head in range(HEADS)
    ]
    asked = [(layer, head, token, way) for layer in range(LAYERS) for head, way in ways for token in tokens]
    files = {each: base64.b64encode(pack(trace, each)).decode() for each in file_names(trace)}
    value = {"facts": facts, "files": files, "asked": asked, "tokens": tokens}
    maps, rollouts = in_node({"attention.js": "Attention", "packs.js": "readPack"}, COMPUTED, value)
    for each, found in zip(asked, maps, strict=True):
        expected, most = expected_map(trace, *each)
        assert (np.abs(np.array(found) - expected) <= most).all(), each
    assert max(map(max, maps)) > 3 / layout.token_count
    whole = rollout_matrix(trace).numpy()
    np.testing.assert_allclose(rollouts, whole[tokens], atol=1e-3 * whole.max())
