"""Of processes that open files in tests."""

from __future__ import annotations

import os


def keep() -> None:
    """Let children have the priority of the tests, which keep all processors busy: others would starve beside them."""
    os.nice = lambda increment: 0
