"""Requests for videos, and the numbers that are saved of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vitviz import Model
from vitviz.datasets import MapRequest
from vitviz.video.render import VideoRequest

COUNT = 13


def video_request(
    model: Model, method: str = "rollout", *, parameters: dict[str, Any] | None = None, **changes: Any
) -> Any:
    return VideoRequest(model, MapRequest(method, parameters or {}), **changes)


def read_numbers(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as arrays:
        return arrays["values"], arrays["seconds"]
