"""Requests for videos, and the numbers that are kept of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vitviz import Model
from vitviz.datasets import MapRequest
from vitviz.datasets.video import VideoRequest

COUNT = 13


def asked(model: Model, method: str = "rollout", *, parameters: dict[str, Any] | None = None, **changes: Any) -> Any:
    return VideoRequest(model, MapRequest(method, parameters or {}), **changes)


def numbers_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as found:
        return found["values"], found["seconds"]
