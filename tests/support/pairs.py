"""Parameters of a test in pairs: what depends on two of them is seen, in a few of all their combinations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations, product
from typing import Any

import pytest


def every_pair(**choices: Iterable[Any] | Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrize a test such that any two values of any two parameters occur together.

    Args:
        choices: the values of each parameter; of a mapping, the keys are their names in the name of the test.
    """
    named = [
        list(each.items()) if isinstance(each, Mapping) else [(str(value), value) for value in each]
        for each in choices.values()
    ]
    rows = {row: set(combinations(enumerate(row), 2)) for row in product(*(range(len(each)) for each in named))}
    missing, chosen = set().union(*rows.values()), []
    while missing:
        best = max(rows, key=lambda row: len(rows[row] & missing))
        missing -= rows[best]
        chosen.append([named[place][index] for place, index in enumerate(best)])
    return pytest.mark.parametrize(
        list(choices),
        [pytest.param(*(value for _, value in row), id="-".join(name for name, _ in row)) for row in chosen],
    )
