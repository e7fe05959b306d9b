"""The benchmark runs, has every number, and states correctly which bars are met."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import bars
from benchmarks.__main__ import main, run_in_process, write
from benchmarks.bars import BARS, Bar
from benchmarks.benchmark import Case, Settings
from benchmarks.measure import Entry, Job, measure
from benchmarks.models import Models
from benchmarks.numbers import significant
from benchmarks.others import backward, transmm
from benchmarks.report import report
from benchmarks.shapes import B_14
from benchmarks.spread import median_interval, spread
from benchmarks.suite import BENCHMARKS, gradients, imports, probes
from benchmarks.suite.analysis import analysis, timm_hooks
from benchmarks.timing import interleave

pytestmark = pytest.mark.process

# It has times, memory and the picture of the report; processes take seconds to start.
SAMPLE_PARTS = ("tokens",)


def entry(contestant: str, ratio: float, case: str = "B/16 at 224 px", tokens: int = 197) -> dict[str, Any]:
    return {
        "case": case,
        "contestant": contestant,
        "kind": "time",
        "tokens": tokens,
        "seconds": spread([ratio / 10])._asdict(),
        "ratio": spread([ratio])._asdict(),
        "baseline": "timm forward pass",
    }


def memory(contestant: str, nbytes: int, case: str) -> dict[str, Any]:
    return {"case": case, "contestant": contestant, "kind": "memory", "bytes": nbytes}


def results_of(*entries: dict[str, Any]) -> dict[str, Any]:
    return {
        "machine": dict.fromkeys(("processor", "cores", "threads", "system", "versions", "date", "quick"), ""),
        "entries": list(entries),
    }


@pytest.fixture(scope="module")
def results_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of some parts, with fast substitutes for the measurements."""
    folder = tmp_path_factory.mktemp("performance")

    def run(job: Job) -> list[Entry]:
        # Only memory needs a process of its own, which takes seconds to start.
        return run_in_process(job) if job.kind == "memory" else measure(job, BENCHMARKS[job.benchmark])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.__main__.run_in_process", run)
        assert main(["--quick", "--threads", "1", "--output", str(folder), "--only", *SAMPLE_PARTS]) == 0
    return folder


@pytest.mark.long
def test_every_contestant_has_its_numbers(results_folder: Path) -> None:
    results = json.loads((results_folder / "results.json").read_text())
    assert set(results) == set(SAMPLE_PARTS)
    settings = Settings(Path(), 1, quick=True)
    for name, found in results.items():
        for case in BENCHMARKS[name].select_cases(settings):
            expected = set(BENCHMARKS[name].contestants(case, settings)) if BENCHMARKS[name].contestants else set()
            entries = [each for each in found["entries"] if each["case"] == case.name]
            times = [each for each in entries if each["kind"] == "time"]
            assert {each["contestant"] for each in times} == expected
            assert all(each[of][which] > 0 for each in times for of in ("seconds", "ratio") for which in each[of])
            peaks = [each["bytes"] for each in entries if each["kind"] == "memory"]
            assert len(peaks) == (1 if case.memory else 0) and all(peak >= 0 for peak in peaks)


@pytest.mark.parametrize("name", ["analysis", "captured", "imports", "interaction"])
def test_so_have_those_of_other_parts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other cases take as long as an interpreter needs to start.
    monkeypatch.setattr(imports, "TORCH", "import json")
    monkeypatch.setattr(imports, "VITVIZ", "import csv")
    settings = Settings(tmp_path, torch.get_num_threads(), quick=True)
    for case in BENCHMARKS[name].select_cases(settings):
        found = measure(Job(name, case.name, "time", settings), BENCHMARKS[name])
        contestants = BENCHMARKS[name].contestants
        assert contestants is not None
        assert {each["contestant"] for each in found} == set(contestants(case, settings))
        assert all(each[of][which] > 0 for each in found for of in ("seconds", "ratio") for which in each[of])


def test_the_contestants_find_the_same(tmp_path: Path) -> None:
    models = Models(B_14.stand_in(), tmp_path)
    logits, expected = timm_hooks(models)()
    encoding, _, found = analysis(models)()
    assert torch.allclose(encoding.logits, logits, atol=1e-4)
    assert torch.allclose(found.values.flatten(), expected, atol=1e-6)
    relevance = gradients.contestants(Case(models.shape, 1), Settings(tmp_path, 1))[gradients.RELEVANCE]()()
    expected = transmm(models.timm, models.pixels, gradients.TARGET)
    assert torch.allclose(relevance.values.flatten(), expected, rtol=1e-3, atol=1e-6 * float(expected.max()))
    assert backward(models.timm, models.pixels, gradients.TARGET).abs().sum() > 0


# What a process writes that fails as one does that is asked for a benchmark that is not there.
FAILING = """#!/bin/sh
echo "Traceback (most recent call last):" >&2
echo "KeyError: 'nothing'" >&2
exit 1
"""


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.long)], ids=["a script", "Python"])
def test_a_measurement_that_fails_says_why(real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not real:
        (tmp_path / "python").write_text(FAILING)
        (tmp_path / "python").chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (found,) = run_in_process(Job("nothing", "a case", "time", Settings(Path(), 1)))
    assert found == {"case": "a case", "contestant": "time", "kind": "failed", "error": "KeyError: 'nothing'"}
    assert "- time: failed, KeyError: 'nothing'" in report({"analysis": results_of(found)})


def test_contestants_take_turns_and_slow_ones_fewer() -> None:
    clock_time, order = 0.0, []

    def runner(name: str, takes: float) -> Any:
        def run() -> None:
            nonlocal clock_time
            clock_time += takes
            order.append(name)

        return run

    runs = {"base": runner("base", 1.0), "near": runner("near", 5.0), "slow": runner("slow", 6.0)}
    found = interleave(runs, 3, clock=lambda: clock_time)
    assert found == {"base": [1.0] * 3, "near": [5.0] * 3, "slow": [6.0] * 2}
    turn = ["base", "near", "slow"]
    assert order == ["base", *turn, *turn, *turn, "base", "near"]
    order.clear()
    interleave({"base": runner("base", 1.0), "near": runner("near", 1.0)}, 3, clock=lambda: clock_time, alternate=True)
    assert order == ["base", "base", "near", *("base", "near"), *("near", "base"), *("base", "near")]


@pytest.mark.parametrize(("ratio", "mark"), [(1.06, "✓"), (1.0601, "✗")])
def test_a_bar_is_met_up_to_its_limit(ratio: float, mark: str) -> None:
    bar = next(bar for bar in BARS if (bar.benchmark, bar.case, bar.limit) == ("analysis", "B/16 at 224 px", 1.06))
    found = entry(bar.contestant, ratio)
    assert bars.bar_of("analysis", found) == bar and bar.is_met(found) == (mark == "✓")
    text = report({"analysis": results_of(found)})
    assert f"| {significant(ratio)} | 1.06 | {mark} |" in text
    assert text.count(mark) == 2


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: f"{bar.benchmark}, {bar.case}, {bar.contestant}, {bar.kind}")
def test_every_bar_is_for_something_that_is_measured(bar: Bar) -> None:
    settings = Settings(Path(), 1)
    case = next(case for case in BENCHMARKS[bar.benchmark].cases if case.name == bar.case)
    contestants = BENCHMARKS[bar.benchmark].contestants
    assert contestants is not None and bar.contestant in contestants(case, settings)
    assert case.memory or bar.kind == "time"


def test_an_interval_of_a_median_is_the_ranks_of_the_sign_test() -> None:
    # From a table: the third lowest and highest of 13, the sixth of 21, the lowest and highest of six.
    for count, rank in ((6, 1), (13, 3), (21, 6), (41, 14)):
        values = [float(value) for value in range(count)]
        assert median_interval(values[::-1]) == (rank - 1, count - rank)
    assert median_interval([1.0] * 5) is None


@pytest.mark.parametrize(
    ("ends", "mark"), [((0.99, 1.01), "✓"), ((1.0, 1.1), "✓"), ((1.001, 1.1), "✗"), ((0.9, 0.99), "✗"), (None, "✗")]
)
def test_a_bar_of_equality_is_met_where_the_interval_holds_one(ends: tuple[float, float] | None, mark: str) -> None:
    case = BENCHMARKS["probes"].cases[0].name
    found = {**entry(probes.WITH, 1.0, case), "interval": ends}
    text = report({"probes": results_of(found)})
    assert text.count(mark) == 2 and "1.00 in the interval" in text
    assert ends is None or f"| {ends[0]:.4f} – {ends[1]:.4f} |" in text


def test_both_contestants_of_the_probes_find_the_same(tmp_path: Path) -> None:
    settings = Settings(tmp_path, 1, quick=True)
    (case,) = BENCHMARKS["probes"].select_cases(settings)
    runs = {name: make() for name, make in probes.contestants(case, settings).items()}
    (without, rows, rollout), (probed, other_rows, other_rollout) = runs[probes.WITHOUT](), runs[probes.WITH]()
    assert without.traces[0].norms is None and probed.traces[0].norms is not None
    assert torch.equal(without.logits, probed.logits) and torch.equal(rows, other_rows)
    assert torch.equal(rollout.values, other_rollout.values)
    (first, second) = measure(Job("probes", case.name, "time", settings), BENCHMARKS["probes"])
    assert first["baseline"] == probes.WITHOUT and second["interval"] is None


def test_a_part_replaces_only_its_own_results(tmp_path: Path) -> None:
    first, second = entry("timm forward pass", 1.0), entry("timm forward pass", 2.0)
    write(tmp_path, {"tokens": results_of(first), "folder": results_of(first)})
    write(tmp_path, {"folder": results_of(second)})
    results = json.loads((tmp_path / "results.json").read_text())
    assert results == {"tokens": results_of(first), "folder": results_of(second)}
