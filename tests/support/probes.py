"""Probes of small networks, and the attention that they are compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.support.makers import MakeModel
from vitviz import Analysis, analyze
from vitviz.evaluation.probes import Findings


def analysis_of(make_model: MakeModel, **changes: Any) -> Analysis:
    pixels = np.random.default_rng(0).integers(0, 256, (48, 60, 3), np.uint8)
    return analyze(Image.fromarray(pixels), make_model(**changes))


def with_outliers(analysis: Analysis) -> Analysis:
    assert analysis.trace.norms is not None
    norms = analysis.trace.norms.clone()
    norms[-2, [4, 9]] *= 90
    return replace(analysis, trace=replace(analysis.trace, norms=norms))


def values_of(findings: Findings, name: str) -> torch.Tensor:
    return findings.measurements[name].values


def near(found: torch.Tensor, expected: Any, tolerance: float = 1e-4) -> None:
    expected = torch.as_tensor(np.array(expected, dtype=np.float64))
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)
