"""The view with which the page opens: a finding of its picture."""

from __future__ import annotations

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.attribution.far_look import FarLook
from vitviz.attribution.methods import MethodName
from vitviz.ui.normalize import refusal
from vitviz.ui.state import TOKEN_METHOD, View
from vitviz.weights import Model

# Of the attention of the square that asks.
LEAST_SHARE = 0.4
WHY: MethodName = "relevance"


def opening_view(analysis: Analysis) -> View:
    """The far look of a picture, or else why the model says what it says, or the attention of the last layer."""
    look = far_look_worth_opening(analysis)
    if look is not None:
        return View(method=TOKEN_METHOD, parameters={"layer": look.layer, "head": look.head, "query": look.query})
    return View(method=WHY if says_why(analysis.model) else TOKEN_METHOD)


def says_why(model: Model) -> bool:
    """Whether there are maps of why a model says what it says."""
    return model.gives_probabilities and refusal(METHODS[WHY], model) is None


def far_look_worth_opening(analysis: Analysis) -> FarLook | None:
    """The far look of a picture; None if its share is small."""
    look = analysis.far_look()
    return look if look is not None and look.share >= LEAST_SHARE else None
