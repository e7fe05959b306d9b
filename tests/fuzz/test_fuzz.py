"""Hostile input costs little: everything that once caused harm, and some random changes.

``make test-long`` fuzzes for an hour, ``python -m tests.fuzz`` for any time; VITVIZ_SEED=7 draws other cases,
VITVIZ_SHARE=0.1 takes a tenth of the hour.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.fuzz import parent
from tests.fuzz.corpus import CORPUS
from tests.fuzz.formats import json_value
from tests.fuzz.parent import findings
from tests.fuzz.targets import TARGETS, draw_case
from tests.support.long_runs import SEED, SHARE
from vitviz import VitvizError

pytestmark = [pytest.mark.hostile, pytest.mark.process]

CHANGED = ("pictures", "checkpoints", "values")
HOUR = 3600


def sentences(target: str, found: list[tuple[int, str]]) -> list[str]:
    return [f"{why}: python -m tests.fuzz {target} --seed {SEED} --only {number}" for number, why in found]


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
    """In this process, which has imported the app; what they cost is measured in the long run."""
    for number in range(count):
        case = draw_case(target, SEED, number)
        with suppress(VitvizError):
            TARGETS[target].run(case.name, case.inputs[-1])


@pytest.mark.long
@pytest.mark.parametrize("target", CHANGED)
def test_an_hour_of_changes_costs_little(target: str) -> None:
    end, first, found = time.monotonic() + SHARE * HOUR / len(CHANGED), 0, []
    while time.monotonic() < end:
        found += findings(target, SEED, first, 200)
        first += 200
    print(f"{target}: {first:,} cases of seed {SEED}")
    assert sentences(target, found) == []


def drawn(target: str, seed: int, number: int) -> tuple[str, ...]:
    """What tells a case from others. Files are told by a hash, as the text of megabytes is slow to write."""
    case = draw_case(target, seed, number)
    contents = (
        each if isinstance(each, bytes) else repr(each).encode("utf-8", "surrogatepass") for each in case.inputs
    )
    return case.name, *(hashlib.sha256(content).hexdigest() for content in contents)


@pytest.mark.parametrize("target", TARGETS)
def test_a_case_is_drawn_by_its_seed_and_number_alone(target: str) -> None:
    cases = [drawn(target, 3, number) for number in range(12)]
    for number in (0, 7, 11):
        assert drawn(target, 3, number) == cases[number]
    if target != "corpus":
        assert len(set(cases)) > 6
        assert drawn(target, 4, 0) != cases[0]


def test_values_are_of_every_kind_of_json() -> None:
    import random

    chance = random.Random(0)
    kinds = {type(json_value(chance)) for _ in range(400)}
    assert kinds == {dict, list, str, int, float, bool, type(None)}


# What the fuzzer must find.


def test_slow_large_wrong_and_hanging_cases_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fuzz import child
    from tests.fuzz.child import judge
    from tests.fuzz.targets import Case, Target

    # One that grows 64-fold is seen in shorter times as well.
    monkeypatch.setattr(child, "FLOOR_SECONDS", 0.02)

    def target(run: object) -> Target:
        return Target(None, run, 1.0, 0.0, 5e7, 0)  # type: ignore[arg-type]

    def quadratic(name: str, content: bytes) -> int:
        return sum(1 for _ in range((len(content) // 2000) ** 2 * 40_000))

    sizes = Case("x", [bytes(2000 * factor) for factor in (1, 2, 4, 8)])
    assert judge(replace(target(quadratic), seconds=100), sizes).endswith(" s for 2,000 to 16,000 bytes")
    assert judge(replace(target(quadratic), seconds=1e-5), sizes).endswith(" s for 2,000 bytes")
    assert judge(target(lambda name, content: bytearray(10**8)), sizes).endswith("bytes of memory for 2,000 bytes")
    assert judge(target(lambda name, content: {}["gone"]), sizes) == "KeyError: 'gone'"
    assert judge(target(lambda name, content: len(content)), sizes) == ""


def test_a_process_that_dies_or_hangs_is_a_finding_and_the_next_case_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def lines(errors: object, target: str, seed: int, first: int, count: int) -> Iterator[str | None]:
        begun.append(first)
        yield json.dumps({"begin": first})
        if first == 0:
            return
        if first == 1:
            yield None
        yield json.dumps({"end": first, "wrong": ""})

    monkeypatch.setattr(parent, "_lines", lines)
    assert list(findings("values", 0, 0, 3)) == [(0, parent.DIED), (1, f"no answer for {parent.PATIENCE:g} s")]
    assert begun == [0, 1, 2]
