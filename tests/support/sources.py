"""The sources of vitviz as syntax trees, which several files of tests read."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """A module, parsed once, as all of them take a second."""
    return ast.parse(path.read_text())
