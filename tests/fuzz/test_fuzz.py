"""Hostile input costs little: everything that once caused harm, and some random changes.

``make test-long`` fuzzes for an hour, ``python -m tests.fuzz`` for any time; VITVIZ_SEED=7 draws other cases,
VITVIZ_SHARE=0.1 takes a tenth of the hour.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest

from tests.fuzz import targets
from tests.fuzz.corpus import CORPUS
from tests.fuzz.formats import json_value
from tests.fuzz.targets import TARGETS, Case, Target, draw_case, findings, judge
from tests.support.long_runs import SEED, SHARE
from tests.support.waiting import HANG_SECONDS
from vitviz import VitvizError

pytestmark = [pytest.mark.hostile, pytest.mark.process]

CHANGED = ("pictures", "values")
HOUR = 3600


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import the app, which takes seconds, before anything is measured."""
    TARGETS["values"].run("", {})


# One of each kind.
ONE_OF_EACH = ("profiles", "schemes")
EVERY = [name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.long) for name in CORPUS]


@pytest.mark.parametrize("name", EVERY)
def test_a_file_that_once_caused_harm_is_one_answer_of_a_child(name: str) -> None:
    start = time.process_time()
    with suppress(VitvizError):
        TARGETS["corpus"].run(name, CORPUS[name].make(CORPUS[name].size))
    assert time.process_time() - start < HANG_SECONDS


def check_findings(target: str, found: Iterator[tuple[int, str]]) -> int:
    """Check that nothing is wrong with any case; returns their number."""
    cases = list(found)
    command = f"python -m tests.fuzz {target} --seed {SEED} --only"
    assert [f"{why}: {command} {number}" for number, why in cases if why] == []
    return len(cases)


@pytest.mark.parametrize(("target", "count"), [("pictures", 7), ("values", 24)])
def test_random_changes_get_a_legal_answer(target: str, count: int) -> None:
    assert check_findings(target, findings(target, SEED, 0, count)) == count


@pytest.mark.long
@pytest.mark.parametrize("target", CHANGED)
def test_an_hour_of_changes_costs_little(target: str) -> None:
    end = time.monotonic() + SHARE * HOUR / len(CHANGED)
    print(f"{target}: {check_findings(target, findings(target, SEED, 0, end=end)):,} cases of seed {SEED}")


@pytest.mark.parametrize("target", TARGETS)
def test_a_case_is_drawn_by_its_seed_and_number_alone(target: str) -> None:
    # Texts of megabytes are slow to write.
    cases = [draw_case(target, *drawn) for drawn in ((3, 0), (3, 7), (4, 0), (3, 0))]
    first, other, another, again = ([each.name, *map(repr, each.inputs)] for each in cases)
    assert first == again and (target not in CHANGED or (first != other and first != another))


def test_values_are_of_every_kind_of_json() -> None:
    chance = random.Random(0)
    kinds = {type(json_value(chance)) for _ in range(400)}
    assert kinds == {dict, list, str, int, float, bool, type(None)}


def test_slow_large_and_wrong_cases_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(targets, "time", SimpleNamespace(process_time=lambda: clock[0]))

    def quadratic(name: str, content: bytes) -> None:
        clock[0] += (len(content) // 2000) ** 2 / 100

    def wrong(run: Callable[..., object], most: float = 100.0) -> str:
        return judge(Target(None, run, most, 0.0, 5e7), Case("x", [bytes(2000), bytes(16_000)]))

    assert wrong(quadratic).endswith(" s for eight times as much")
    assert wrong(quadratic, 1e-5).endswith(" bytes of memory for 2,000 bytes")
    # Meanwhile the system may take back memory that this process has not used for long.
    assert wrong(lambda name, content: bytearray(4 * 10**8)).endswith("bytes of memory for 2,000 bytes")
    assert wrong(lambda name, content: {}["gone"]) == "KeyError: 'gone'"
    assert wrong(lambda name, content: len(content)) == ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere, addresses are not limited")
def test_a_case_that_takes_all_memory_or_never_ends_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, number: int) -> object:
        if number == 1:
            # Its time is over.
            assert signal.getitimer(signal.ITIMER_PROF)[0] > 0
            signal.raise_signal(signal.SIGPROF)
        while number == 1:
            pass
        return bytearray(2**36) if number == 2 else None

    monkeypatch.setattr(targets, "draw_case", lambda target, seed, number: Case("x", [number]))
    monkeypatch.setitem(targets.TARGETS, "values", Target(None, run, 1.0, 0.0, 5e7))
    endless = "AssertionError: no answer in 60 s of a processor"
    assert list(findings("values", 0, 0, 4)) == [(0, ""), (1, endless), (2, "MemoryError: "), (3, "")]
    assert list(findings("values", 0, 0, 4, end=time.monotonic())) == []
