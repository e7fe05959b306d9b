"""The classes that a model predicts, as a table in a notebook and on a terminal."""

from __future__ import annotations

from dataclasses import dataclass

from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.tables import html_table, text_table


@dataclass(frozen=True)
class Prediction(AttributeAdvice):
    """A class, its probability, in [0, 1], and its number.

    >>> [best] = analysis.predictions(1)
    >>> best.label, round(best.probability, 2)
    ('cat', 0.73)
    """

    label: str
    probability: float
    index: int


class Predictions(list[Prediction], AttributeAdvice):
    """Predictions of one image, best first."""

    def __repr__(self) -> str:
        return text_table((f"{each.probability:6.1%}", each.label) for each in self)

    def _repr_html_(self) -> str:
        # HTML keeps figure spaces, which are as wide as a digit.
        return html_table((f"{each.probability:5.1%}".replace(" ", "\u2007"), each.label) for each in self)
