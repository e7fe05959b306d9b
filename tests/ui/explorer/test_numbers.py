"""The page writes numbers as the library does."""

from __future__ import annotations

import numpy as np

from tests.support.node import in_node
from vitviz.errors.number_text import digits, percent

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
    found = in_node("numbers.js", "digits", "(values) => values.map(digits)", values)
    assert found == [digits(value) for value in values]
    shares = [value for value in values if value >= 0]
    found = in_node("numbers.js", "percent", "(values) => values.map(percent)", shares)
    assert found == [percent(value) for value in shares]
