"""Published checkpoints, if a folder has some, give the numbers of their packages on real photographs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.published.checks import VARIABLE, check, checkpoints

pytestmark = pytest.mark.parity

if VARIABLE not in os.environ:
    pytest.skip(
        f"{VARIABLE} names no folder of published checkpoints; docs/checked.md says how to get some",
        allow_module_level=True,
    )

# Before a package is imported that needs it.
import tests.reference_packages  # noqa: E402, F401

CHECKPOINTS = checkpoints(Path(os.environ[VARIABLE]))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_published_checkpoint_has_the_numbers_of_its_package(name: str) -> None:
    figures = check(CHECKPOINTS[name])
    assert figures.wrong == []
    assert {"pixels", "output", "sums"} <= figures.comparisons.keys()
