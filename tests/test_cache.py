"""Analyses are kept within a bound, and handed out to nobody but their owner."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from PIL import Image

from vitviz import Analysis, Model, analyze
from vitviz.cache import AnalysisCache

MakeModel = Callable[..., Model]


@pytest.fixture
def analyses(make_model: MakeModel) -> list[Analysis]:
    """Eight analyses of the same number of bytes."""
    model = make_model(depth=1)
    return [analyze(Image.new("RGB", (8, 8), (number, 0, 0)), model) for number in range(8)]


def test_an_analysis_comes_back_by_its_id(analyses: list[Analysis]) -> None:
    cache = AnalysisCache(10**9)
    keys = [cache.put(analysis) for analysis in analyses]
    assert all(cache.get(key) is analysis for key, analysis in zip(keys, analyses, strict=True))
    assert len(cache) == 8


def test_ids_do_not_follow_from_what_they_stand_for(analyses: list[Analysis]) -> None:
    caches = [AnalysisCache(10**9), AnalysisCache(10**9)]
    keys = [cache.put(analyses[0]) for cache in caches for _ in range(500)]
    assert len(set(keys)) == 1000
    # Of 128 random bits in base 64, about 63 of 64 places differ between two ids.
    assert all(len(key) >= 22 for key in keys)
    same = [sum(a == b for a, b in zip(one, other, strict=True)) for one, other in pairwise(keys)]
    assert max(same) <= 8


@pytest.mark.parametrize("key", ["", "0", "unknown", "a" * 22])
def test_an_id_that_was_never_given_out_gives_nothing(analyses: list[Analysis], key: str) -> None:
    cache = AnalysisCache(10**9)
    cache.put(analyses[0])
    assert cache.get(key) is None


@pytest.mark.parametrize(("room", "kept"), [(3.0, 3), (2.99, 2), (1.0, 1), (8.0, 8), (100.0, 8)])
def test_the_oldest_leave_when_the_bound_is_reached(analyses: list[Analysis], room: float, kept: int) -> None:
    cache = AnalysisCache(int(room * analyses[0].nbytes))
    keys = [cache.put(analysis) for analysis in analyses]
    assert [cache.get(key) is not None for key in keys] == [False] * (8 - kept) + [True] * kept
    assert len(cache) == kept


def test_what_was_asked_for_last_stays_longest(analyses: list[Analysis]) -> None:
    cache = AnalysisCache(3 * analyses[0].nbytes)
    first, second, third = (cache.put(analysis) for analysis in analyses[:3])
    assert cache.get(first) is analyses[0]
    fourth = cache.put(analyses[3])
    assert cache.get(second) is None
    assert [cache.get(key) for key in (first, third, fourth)] == [analyses[0], analyses[2], analyses[3]]


@pytest.mark.parametrize("bound", [0, 1])
def test_the_newest_is_kept_however_large_it_is(analyses: list[Analysis], bound: int) -> None:
    cache = AnalysisCache(bound)
    old, new = cache.put(analyses[0]), cache.put(analyses[1])
    assert cache.get(old) is None
    assert cache.get(new) is analyses[1]


def test_one_large_analysis_drives_out_several_small_ones(analyses: list[Analysis], make_model: MakeModel) -> None:
    large = analyze(Image.new("RGB", (100, 100)), make_model(depth=1))
    small = analyses[0].nbytes
    cache = AnalysisCache(large.nbytes + small)
    keys = [cache.put(analysis) for analysis in analyses[:3]]
    assert all(cache.get(key) for key in keys)
    last = cache.put(large)
    assert [cache.get(key) for key in (*keys, last)] == [None, None, analyses[2], large]
    # What left no longer counts: there is room again for as many as before.
    after = [cache.put(analysis) for analysis in analyses[3:7]]
    assert cache.get(last) is None
    assert all(cache.get(key) for key in after)


def test_many_threads_keep_the_bound_and_get_their_own(analyses: list[Analysis]) -> None:
    bound = 5
    cache = AnalysisCache(bound * analyses[0].nbytes)

    def work(number: int) -> int:
        mine, wrong = analyses[number % 8], 0
        for _ in range(200):
            key = cache.put(mine)
            wrong += cache.get(key) not in (mine, None)
            wrong += len(cache) > bound + 1
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(16))) == 0
    assert len(cache) == bound
    keys = [cache.put(analysis) for analysis in analyses]
    assert [cache.get(key) for key in keys] == [None] * 3 + analyses[3:]
