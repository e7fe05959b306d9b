"""Kinds of models for tests of the page's state, and a check that a state is legal."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from PIL import Image

import vitviz
from vitviz import Analysis, Model
from vitviz.errors.kinds import MethodError
from vitviz.ui.normalize import normalize
from vitviz.ui.state import PageState

FAST = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
KINDS: dict[str, dict[str, Any]] = {
    "classes": {},
    "registers": {"register_tokens": 2},
    "features": {"classes": 0},
    "mean": {"classes": 0, "cls_token": False, "register_tokens": 2, "pooling": "mean"},
    "pooled": {"cls_token": False, "pooling": "attention"},
    "texts": {"classes": 0},
    "snapshots": {},
}
STEPS = (0, 20, 1000)


def is_sentence(error: MethodError) -> bool:
    text = str(error)
    return 0 < len(text) < 2000 and "\n" not in text


def shown(model: Model, height: int = 16, width: int = 24) -> Analysis:
    """The analysis of a grey picture, as it is."""
    return vitviz.analyze(Image.new("RGB", (width, height)), model, "native", resolution=min(height, width))


def is_legal(value: object, view: Analysis) -> bool:
    """Whether a value becomes a state that is legal for a model once normalized, or is refused with a sentence."""
    try:
        state = PageState.from_json(value)
    except MethodError as error:
        return is_sentence(error)
    normalized, notes = normalize(state, [view] * len(state.views))
    second, second_notes = normalize(normalized, [view] * len(normalized.views))
    assert all(note.endswith(".") and "\n" not in note for note in notes)
    return normalized == second and second_notes == [] and PageState.from_json(normalized.to_json()) == normalized
