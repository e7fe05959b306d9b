"""Methods that turn a trace into a map. Pure functions; :data:`METHODS` lists them."""

from vitviz.attribution.attention import attention, attention_sheet
from vitviz.attribution.methods import METHODS, Method
from vitviz.attribution.relevance import relevance
from vitviz.attribution.rollout import rollout, rollout_matrix

__all__ = ["METHODS", "Method", "attention", "attention_sheet", "relevance", "rollout", "rollout_matrix"]
