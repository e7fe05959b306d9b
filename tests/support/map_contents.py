"""What an answer of the app says of a map: a safetensors file in base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load


def map_values(answer: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """``"token"``."""
    found: np.ndarray[Any, Any] = load(base64.b64decode(answer["content"]))["values"]
    return found


def map_about(answer: Mapping[str, Any]) -> dict[str, str]:
    """What the map says of itself: the file's metadata."""
    content = base64.b64decode(answer["content"])
    found: dict[str, str] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    return found
