"""Probes of a model's tokens, attention and weights, one function each."""

from vitviz.evaluation.probes.features import token_features
from vitviz.evaluation.probes.findings import AXES, Findings, Measurement
from vitviz.evaluation.probes.table import PROBES, Probe, probe

__all__ = ["AXES", "PROBES", "Findings", "Measurement", "Probe", "probe", "token_features"]
