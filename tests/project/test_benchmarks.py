"""The benchmark runs, has every number, and states correctly which bars are met."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.__main__ import main, run_in_process, write
from benchmarks.benchmark import Case, Models, Settings
from benchmarks.measure import interleave, measure, median_interval, spread
from benchmarks.networks import B_14
from benchmarks.report import report
from benchmarks.suite import BENCHMARKS, imports, probes
from benchmarks.suite.analysis import MEAN, analysis, timm_hooks

pytestmark = pytest.mark.process
SETTINGS = Settings(Path(), torch.get_num_threads(), quick=True)


def entry(contestant: str, ratio: float, case: str = "B/16 at 224 px") -> dict[str, Any]:
    numbers: dict[str, Any] = {"seconds": spread([ratio / 10]), "ratio": spread([ratio])}
    names = {"case": case, "contestant": contestant, "kind": "time", "baseline": "timm forward pass"}
    return {**names, **numbers, "tokens": 197}


def results_of(*entries: dict[str, Any]) -> dict[str, Any]:
    machine = dict.fromkeys(("processor", "cores", "threads", "system", "versions", "date", "quick"), "")
    return {"machine": machine, "entries": list(entries)}


@pytest.mark.long
def test_every_contestant_has_its_numbers(tmp_path: Path) -> None:
    assert main(["--quick", "--threads", "1", "--output", str(tmp_path), "--only", "tokens"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    expected = set(BENCHMARKS["tokens"].contestants)
    found = {(each["contestant"], each["kind"]) for each in results["tokens"]["entries"]}
    assert found == {(name, kind) for name in expected for kind in ("time", "memory")}
    assert "](cost.svg)" in (tmp_path / "results.md").read_text() and (tmp_path / "cost.svg").exists()


@pytest.mark.parametrize("name", ["analysis", "captured", "imports", "interaction", "overlay", "probes"])
def test_contestants_of_a_part_are_measured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another case takes as long as an interpreter needs to start.
    monkeypatch.setattr(imports.sys, "executable", "true")
    (case,) = BENCHMARKS[name].select_cases(SETTINGS)
    found = measure(name, case.name, SETTINGS)
    # Nobody has brought vit-explain.
    expected = [each for each in BENCHMARKS[name].contestants if not each.startswith("vit-explain")]
    assert [each["contestant"] for each in found] == expected
    assert all(each[of][which] > 0 for each in found for of in ("seconds", "ratio") for which in each[of])


def test_the_contestants_find_the_same() -> None:
    models = Models(Case(B_14.stand_in(), 1), SETTINGS)
    hooks: Any = timm_hooks(models)
    logits, expected = hooks()
    for engine in ("own", "module"):
        encoding, _, found = analysis(models, engine)()
        assert torch.allclose(encoding.logits, logits, atol=1e-4)
        assert torch.allclose(found.values.flatten(), expected, atol=1e-6)


def test_both_contestants_of_the_probes_find_the_same() -> None:
    (case,) = BENCHMARKS["probes"].select_cases(SETTINGS)
    runs: Any = {name: make(Models(case, SETTINGS)) for name, make in BENCHMARKS["probes"].contestants.items()}
    (without, rows, rollout), (probed, other_rows, other_rollout) = runs[probes.WITHOUT](), runs[probes.WITH]()
    assert not torch.equal(without.traces[0].norms, probed.traces[0].norms)
    assert torch.equal(without.logits, probed.logits) and torch.equal(rows, other_rows)
    assert torch.equal(rollout.values, other_rollout.values)


def test_a_measurement_that_fails_says_why() -> None:
    (case,) = BENCHMARKS["imports"].select_cases(SETTINGS)
    (found,) = run_in_process(BENCHMARKS["imports"], replace(case, variant="another"), SETTINGS)
    assert found == {"case": "another", "contestant": "all", "kind": "failed", "error": "StopIteration: "}
    assert "| all | StopIteration:  |" in report({"analysis": results_of(found)})


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
    text = report({"analysis": results_of(entry(MEAN, ratio))})
    assert f"{MEAN} | 1.06 | 1.06 | {mark} |" in text and text.count(mark) == 1


@pytest.mark.parametrize(
    ("ends", "mark"), [((0.99, 1.01), "✓"), ((1.0, 1.1), "✓"), ((1.001, 1.1), "✗"), ((0.9, 0.99), "✗"), (None, "✗")]
)
def test_a_bar_of_equality_is_met_where_the_interval_holds_one(ends: tuple[float, float] | None, mark: str) -> None:
    found = {**entry(probes.WITH, 1.0, BENCHMARKS["probes"].cases[0].name), "interval": ends}
    text = report({"probes": results_of(found)})
    assert text.count(mark) == 1 and "1.00 in the interval" in text
    assert ends is None or f"| {ends[0]:.4f} – {ends[1]:.4f} |" in text


def test_every_bar_is_for_something_that_is_measured() -> None:
    for benchmark in BENCHMARKS.values():
        for (contestant, kind), limits in benchmark.bars.items():
            assert len(limits) == len(benchmark.cases)
            assert contestant in benchmark.contestants or (contestant == "" and benchmark.facts is not None)
            with_memory = [case.memory for case in benchmark.cases]
            assert kind != "memory" or [limit is not None for limit in limits] == with_memory
    assert sum(limit is not None for each in BENCHMARKS.values() for bar in each.bars.values() for limit in bar) == 42


def test_an_interval_of_a_median_is_the_ranks_of_the_sign_test() -> None:
    # From a table: the third lowest and highest of 13, the sixth of 21, the lowest and highest of six.
    for count, rank in ((6, 1), (13, 3), (21, 6), (41, 14)):
        values = [float(value) for value in range(count)]
        assert median_interval(values[::-1]) == (rank - 1, count - rank)
    assert median_interval([1.0] * 5) is None


def test_a_part_replaces_only_its_own_results(tmp_path: Path) -> None:
    first, second = entry("timm forward pass", 1.0), entry("timm forward pass", 2.0)
    write(tmp_path, {"overlay": results_of(first), "folder": results_of(first)})
    write(tmp_path, {"folder": results_of(second)})
    results = json.loads((tmp_path / "results.json").read_text())
    assert results == {"overlay": results_of(first), "folder": results_of(second)}
