"""Results as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def jsonable(value: Any) -> Any:
    """A value as JSON holds it: arrays and tensors as lists, and numbers that JSON lacks as None."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: jsonable(each) for key, each in value.items()}
    return [jsonable(each) for each in value] if isinstance(value, list | tuple) else value
