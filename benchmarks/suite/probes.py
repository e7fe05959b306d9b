"""What the probes cost an analysis without probes: the norms of all tokens, which every forward pass records."""

from __future__ import annotations

from unittest.mock import patch

from benchmarks.benchmark import Benchmark, Case, Models, Run
from benchmarks.networks import B_16, S_8, TI_16
from benchmarks.suite.analysis import analysis

WITHOUT, WITH = "vitviz without the norms of tokens", "vitviz, no probe asked for"


def _without_norms(models: Models) -> Run:
    # In place of the lengths, the first number of each token.
    return patch("torch.linalg.vector_norm", lambda tokens, dim: tokens[..., 0])(analysis(models))


BENCHMARK = Benchmark(
    "probes",
    "An analysis that asks for no probe",
    "Logits, trace, CLS rows and mean rollout, with the norms of all tokens, which the probes need and every forward "
    "pass measures, and without. Processor time; every second round goes backwards. The interval is that of the "
    "median of the ratios, by ranks; the bar is that it holds 1.",
    (Case(TI_16, 101), Case(B_16, 41), Case(S_8, 31)),
    {WITHOUT: _without_norms, WITH: analysis},
    bars={(WITH, "interval"): (1.0, 1.0, 1.0)},
    paired=True,
)
