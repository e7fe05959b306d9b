"""The server's log: at most one line per request, without its content."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

LOGGER = logging.getLogger("vitviz.server")
# What a visitor reads about an unexpected error.
INTERNAL_ERROR = "The server failed to answer this request; what happened is in its log."
FRAMES = 4


def place_of(error: BaseException) -> str:
    """Place and type of an error, without its message, which may quote the request."""
    places = [
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)[-FRAMES:]
    ]
    return " > ".join([*places, type(error).__name__])


def log_unexpected(where: str, error: Exception) -> None:
    """Log type and place of an unexpected error, and nothing that a visitor sent."""
    LOGGER.error("%s: %s", where, place_of(error))
