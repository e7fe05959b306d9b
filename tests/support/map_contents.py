"""Reads a map in an answer of the app, which is a safetensors file in base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load


def map_values(answer: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The values of the map, ``"token"``."""
    values: np.ndarray[Any, Any] = load(base64.b64decode(answer["content"]))["values"]
    return values


def map_metadata(answer: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of the map's file."""
    return metadata_of(base64.b64decode(answer["content"]))


def metadata_of(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file."""
    metadata: dict[str, str] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    return metadata
