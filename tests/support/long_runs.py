"""How often `make test-long` repeats what it repeats.

VITVIZ_TEST_SEED=7 draws others; VITVIZ_TEST_PART=0.1 draws a tenth of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

Value = TypeVar("Value")

SEED = int(os.environ.get("VITVIZ_TEST_SEED", "0"))
SHARE = float(os.environ.get("VITVIZ_TEST_PART", "1"))


def share_of(count: int) -> int:
    """The share of a number of repetitions, at least one."""
    return max(1, round(SHARE * count))


def one_in(count: int, values: Mapping[str, Any], first: int = 0) -> list[Any]:
    """One of so many values as cases of every run, and the others of a long run."""
    return [
        pytest.param(value, id=name, marks=() if number % count == first else pytest.mark.long)
        for number, (name, value) in enumerate(values.items())
    ]


def check_drawn(
    strategy: st.SearchStrategy[Value], count: int, check: Callable[[Value], object], seed: int = SEED
) -> None:
    """Check so many values of a strategy, the same ones for the same seed."""

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategy)
    def check_each(value: Value) -> None:
        check(value)

    check_each()
