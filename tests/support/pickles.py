"""Pickles with content that no checkpoint should have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class Payload:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)
