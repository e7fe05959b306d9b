"""Models of every kind for tests of the page's state."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

from vitviz.errors.kinds import MethodError
from vitviz.ui.normalize import ShownView, normalize
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


def is_legal(value: object, seen: ShownView) -> bool:
    """Whether a value is read as a state that is legal for a model once it is normalized, or refused in a sentence."""
    try:
        state = PageState.from_json(value)
    except MethodError as error:
        return is_sentence(error)
    found, notes = normalize(state, [seen] * len(state.views))
    again, none = normalize(found, [seen] * len(found.views))
    assert all(note.endswith(".") and "\n" not in note for note in notes)
    return found == again and none == [] and PageState.from_json(found.to_json()) == found
