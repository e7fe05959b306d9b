"""Hostile input costs little: everything that once caused harm, and some random changes.

``make test-long`` fuzzes for an hour, ``python -m tests.fuzz`` for any time; VITVIZ_SEED=7 draws other cases,
VITVIZ_SHARE=0.1 takes a tenth of the hour.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.fuzz import targets
from tests.fuzz.corpus import CORPUS
from tests.fuzz.formats import json_value
from tests.fuzz.targets import TARGETS, Case, Target, draw_case, findings, judge, watched_findings
from tests.support.long_runs import SEED, SHARE
from vitviz import VitvizError

pytestmark = [pytest.mark.hostile, pytest.mark.process]

CHANGED = ("pictures", "checkpoints", "values")
HOUR = 3600


def sentences(target: str, found: list[tuple[int, str]]) -> list[str]:
    return [f"{why}: python -m tests.fuzz {target} --seed {SEED} --only {number}" for number, why in found]


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import the app, which takes seconds, before anything is measured."""
    TARGETS["values"].run("", {})


# One of each kind, whose child ends by a refusal, by its time and by its memory.
ONE_OF_EACH = ("profiles", "names", "layers that share a tensor", "dimensions", "headers of arrays", "schemes")
EVERY = [name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.long) for name in CORPUS]


@pytest.mark.parametrize("name", EVERY)
def test_a_file_that_once_caused_harm_is_one_answer_of_a_child(name: str) -> None:
    start = time.process_time()
    with suppress(VitvizError):
        TARGETS["corpus"].run(name, CORPUS[name].make(CORPUS[name].size))
    assert time.process_time() - start < 5


@pytest.mark.parametrize(("target", "count"), [("pictures", 7), ("checkpoints", 7), ("values", 24)])
def test_random_changes_get_a_legal_answer(target: str, count: int) -> None:
    assert sentences(target, list(findings(target, SEED, 0, count))) == []


@pytest.mark.long
@pytest.mark.parametrize("target", CHANGED)
def test_an_hour_of_changes_costs_little(target: str) -> None:
    cases = list(watched_findings(target, SEED, 0, end=time.monotonic() + SHARE * HOUR / len(CHANGED)))
    print(f"{target}: {len(cases):,} cases of seed {SEED}")
    assert sentences(target, [(number, why) for number, why in cases if why]) == []


def drawn(target: str, seed: int, number: int) -> tuple[object, ...]:
    """What tells a case from others; texts of megabytes are slow to write."""
    case = draw_case(target, seed, number)
    return case.name, *(each if isinstance(each, bytes | str) else repr(each) for each in case.inputs)


def test_a_case_is_drawn_by_its_seed_and_number_alone() -> None:
    for target in TARGETS:
        cases = [drawn(target, 3, number) for number in range(12)]
        assert [drawn(target, 3, number) for number in (0, 7, 11)] == [cases[0], cases[7], cases[11]]
        if target in CHANGED:
            assert len(set(cases)) > 6 and drawn(target, 4, 0) != cases[0]


def test_values_are_of_every_kind_of_json() -> None:
    chance = random.Random(0)
    kinds = {type(json_value(chance)) for _ in range(400)}
    assert kinds == {dict, list, str, int, float, bool, type(None)}


def test_slow_large_and_wrong_cases_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    # One that grows 64-fold is seen in shorter times as well.
    monkeypatch.setattr(targets, "FLOOR_SECONDS", 0.02)

    def quadratic(name: str, content: bytes) -> int:
        return sum(1 for _ in range((len(content) // 2000) ** 2 * 40_000))

    def wrong(run: Callable[..., object], seconds: float = 100.0) -> str:
        return judge(Target(None, run, seconds, 0.0, 5e7), Case("x", [bytes(2000), bytes(16_000)]))

    assert wrong(quadratic).endswith(" s for eight times as much")
    assert wrong(quadratic, 1e-5).endswith(" bytes of memory for 2,000 bytes")
    # Meanwhile the system may take back memory that this process has not used for long.
    assert wrong(lambda name, content: bytearray(4 * 10**8)).endswith("bytes of memory for 2,000 bytes")
    assert wrong(lambda name, content: {}["gone"]) == "KeyError: 'gone'"
    assert wrong(lambda name, content: len(content)) == ""


def fail_by_number(name: str, number: object) -> None:
    """Ends its process, hangs or uses a processor without end."""
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while number == 2:
        time.sleep(1)
    while number == 3:
        pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere, addresses are not limited")
def test_a_case_that_takes_all_memory_hangs_or_ends_its_process_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(targets.TARGETS, "values", Target(None, lambda *_: bytearray(2**36), 1.0, 0.0, 5e7))
    assert list(findings("values", 0, 0, 1)) == [(0, "MemoryError: ")]
    monkeypatch.setattr(targets, "CASE_SECONDS", 0.2)
    monkeypatch.setattr(targets, "CASE_CLOCK_SECONDS", 3.0)
    monkeypatch.setattr(targets, "draw_case", lambda target, seed, number: Case("x", [number]))
    monkeypatch.setitem(targets.TARGETS, "values", Target(None, fail_by_number, 1.0, 0.0, 5e7))
    killed, timed = (f"its process ended with {-number}" for number in (signal.SIGKILL, signal.SIGPROF))
    expected = [(0, ""), (1, killed), (2, "no answer in 3 s"), (3, timed), (4, "")]
    assert list(watched_findings("values", 0, 0, 5)) == expected
    assert list(watched_findings("values", 0, 0, 5, end=time.monotonic())) == []
