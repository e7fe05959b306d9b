"""Calls that are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest


def check_refusals(error: type[Exception], calls: Mapping[str, Callable[[], object]]) -> None:
    """Each call raises this error, whose message the call's pattern matches from its beginning."""
    for pattern, call in calls.items():
        with pytest.raises(error, match=f"^{pattern}"):
            call()
