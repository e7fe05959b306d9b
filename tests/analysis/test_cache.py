"""Analyses and models are kept within a bound; an analysis is handed out to its owner, an example to all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from PIL import Image

from vitviz import Analysis, Model, analyze
from vitviz.analysis.cache import AnalysisCache, ModelCache

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


def test_what_is_nobodys_own_is_found_until_it_leaves(analyses: list[Analysis]) -> None:
    cache = AnalysisCache(2 * analyses[0].nbytes)
    key = cache.put(analyses[0], "example")
    assert cache.find("example") == (key, analyses[0])
    cache.put(analyses[1])
    assert cache.find("another") is None and cache.find(None) is None
    # It was asked for, and stays as if it had been used.
    cache.find("example")
    cache.put(analyses[2])
    assert cache.find("example") == (key, analyses[0])
    again = cache.put(analyses[3], "example")
    assert cache.find("example") == (again, analyses[3]) != (key, analyses[0])
    cache.drop(analyses[3].model)
    assert cache.find("example") is None


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
    large = analyze(Image.new("RGB", (220, 220)), make_model(depth=1))
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


def test_the_analyses_of_a_model_that_leaves_are_dropped(analyses: list[Analysis], make_model: MakeModel) -> None:
    other = make_model(depth=1)
    theirs = [analyze(Image.new("RGB", (8, 8), (0, number, 0)), other) for number in range(2)]
    cache = AnalysisCache(8 * analyses[0].nbytes)
    first, second, third, fourth = (
        cache.put(analysis) for analysis in (analyses[0], theirs[0], analyses[1], theirs[1])
    )
    cache.drop(analyses[0].model)
    assert len(cache) == 2
    assert [cache.get(key) for key in (first, second, third, fourth)] == [None, theirs[0], None, theirs[1]]
    cache.drop(analyses[0].model)
    assert len(cache) == 2
    # What was dropped no longer counts: there is room for six more beside the two.
    keys = [second, fourth, *(cache.put(analysis) for analysis in analyses[:6])]
    assert all(cache.get(key) for key in keys)


# Models.

SECONDS = 10


@pytest.fixture
def models(make_model: MakeModel) -> list[Model]:
    """Five models of the same number of bytes."""
    return [make_model(depth=1) for _ in range(5)]


class Shelf:
    """Models that are opened by their number, and a log of it."""

    def __init__(self, models: list[Model], room: float) -> None:
        self.models = models
        self.opened: list[int] = []
        self.gone: list[Model] = []
        self.cache = ModelCache(int(room * models[0].nbytes), self.gone.append)

    def get(self, number: int) -> Model:
        return self.cache.get(number, lambda: self.open(number))

    def open(self, number: int) -> Model:
        self.opened.append(number)
        return self.models[number]


def test_a_model_is_opened_once_and_comes_back(models: list[Model]) -> None:
    shelf = Shelf(models, 100)
    assert [shelf.get(number) for number in (0, 1, 0, 1, 0)] == [models[number] for number in (0, 1, 0, 1, 0)]
    assert shelf.opened == [0, 1]
    assert len(shelf.cache) == 2
    assert not shelf.gone


@pytest.mark.parametrize(("room", "kept"), [(3.0, 3), (2.99, 2), (1.0, 1), (0.0, 1), (5.0, 5), (100.0, 5)])
def test_the_oldest_models_leave_when_the_bound_is_reached(models: list[Model], room: float, kept: int) -> None:
    shelf = Shelf(models, room)
    for number in range(5):
        assert shelf.get(number) is models[number], "the newest is kept however large it is"
        assert len(shelf.cache) <= max(1, int(room))
    assert shelf.gone == models[: 5 - kept]
    shelf.opened.clear()
    for number in range(5 - kept, 5):
        shelf.get(number)
    assert not shelf.opened
    if kept < 5:
        assert shelf.get(0) is models[0]
        assert shelf.opened == [0], "what left is opened again"


def test_the_model_that_was_asked_for_last_stays_longest(models: list[Model]) -> None:
    shelf = Shelf(models, 3)
    for number in (0, 1, 2, 0, 3):
        shelf.get(number)
    assert shelf.gone == [models[1]]
    shelf.get(2)
    shelf.get(4)
    assert shelf.gone == [models[1], models[0]]


def test_one_large_model_drives_out_several_small_ones(models: list[Model], make_model: MakeModel) -> None:
    large = make_model(depth=3)
    assert large.nbytes > 2 * models[0].nbytes
    shelf = Shelf([*models, large], 4)
    for number in (0, 1, 2, 5):
        shelf.get(number)
    rest = 4 - large.nbytes / models[0].nbytes
    assert shelf.gone == models[: 3 - int(rest)]
    assert len(shelf.cache) == 1 + int(rest)


def waits(cache: ModelCache, key: object) -> bool:
    """Whether others would wait for a model to be opened."""
    return key in cache._opening


def test_of_many_threads_one_opens_while_the_others_wait(models: list[Model]) -> None:
    shelf = Shelf(models, 100)
    begun, go = threading.Event(), threading.Event()

    def slowly() -> Model:
        begun.set()
        assert go.wait(SECONDS)
        return shelf.open(0)

    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(shelf.cache.get, 0, slowly) for _ in range(6)]
        assert begun.wait(SECONDS)
        time.sleep(0.05)
        assert not any(future.done() for future in asked)
        go.set()
        assert [future.result(SECONDS) for future in asked] == [models[0]] * 6
    assert shelf.opened == [0]
    assert not waits(shelf.cache, 0)


def test_who_waits_for_one_model_does_not_keep_others_from_theirs(models: list[Model]) -> None:
    shelf = Shelf(models, 100)
    begun, go = threading.Event(), threading.Event()

    def slowly() -> Model:
        begun.set()
        assert go.wait(SECONDS)
        return shelf.open(0)

    shelf.get(1)
    with ThreadPoolExecutor(3) as pool:
        slow = [pool.submit(shelf.cache.get, 0, slowly) for _ in range(2)]
        assert begun.wait(SECONDS)
        assert pool.submit(shelf.get, 1).result(SECONDS) is models[1]
        assert pool.submit(shelf.get, 2).result(SECONDS) is models[2]
        go.set()
        assert [future.result(SECONDS) for future in slow] == [models[0]] * 2
    assert shelf.opened == [1, 2, 0]


class CannotBeOpened(Exception):
    pass


def fails() -> Model:
    raise CannotBeOpened


def test_what_cannot_be_opened_is_tried_again_the_next_time(models: list[Model]) -> None:
    shelf = Shelf(models, 100)
    for _ in range(2):
        with pytest.raises(CannotBeOpened):
            shelf.cache.get(0, fails)
        assert not waits(shelf.cache, 0)
        assert len(shelf.cache) == 0
    assert shelf.get(0) is models[0]
    assert shelf.opened == [0]
    assert shelf.cache.get(0, fails) is models[0]


def test_who_waited_for_what_failed_tries_for_himself(models: list[Model]) -> None:
    shelf = Shelf(models, 100)
    begun, go = threading.Event(), threading.Event()

    def fails_slowly() -> Model:
        begun.set()
        assert go.wait(SECONDS)
        raise CannotBeOpened

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(shelf.cache.get, 0, fails_slowly)
        assert begun.wait(SECONDS)
        others = [pool.submit(shelf.get, 0) for _ in range(3)]
        time.sleep(0.05)
        go.set()
        with pytest.raises(CannotBeOpened):
            first.result(SECONDS)
        assert [future.result(SECONDS) for future in others] == [models[0]] * 3
    assert shelf.opened == [0], "one of those who waited"


def test_nothing_is_left_of_keys_that_were_asked_for(models: list[Model]) -> None:
    """An app is asked for as many names as its visitors can think of."""
    cache = ModelCache(0, lambda _: None)
    for number in range(50):
        with pytest.raises(CannotBeOpened):
            cache.get(number, fails)
        for _ in range(2):
            cache.get("same", lambda: models[0])
        cache.get(f"another {number}", lambda: models[1])
    assert not cache._opening
    assert len(cache) == 1


def test_who_is_told_of_a_model_that_leaves_may_ask_the_cache(models: list[Model]) -> None:
    """The lock is free by then, and the newcomer is there."""
    asked = []

    def leaving(model: Model) -> None:
        with ThreadPoolExecutor(1) as pool:
            asked.append((model, len(cache), pool.submit(cache.get, 1, fails).result(SECONDS)))

    cache = ModelCache(models[0].nbytes, leaving)
    cache.get(0, lambda: models[0])
    assert cache.get(1, lambda: models[1]) is models[1]
    assert asked == [(models[0], 1, models[1])]


def test_the_analyses_of_a_model_leave_with_it(models: list[Model]) -> None:
    analyses = AnalysisCache(10**9)
    cache = ModelCache(2 * models[0].nbytes, analyses.drop)
    picture = Image.new("RGB", (8, 8))
    keys = [analyses.put(analyze(picture, cache.get(number, lambda n=number: models[n]))) for number in range(3)]
    assert [analyses.get(key) is not None for key in keys] == [False, True, True]


def test_many_threads_keep_the_bound_of_models_and_open_no_model_twice_at_once(models: list[Model]) -> None:
    opening: set[int] = set()
    guard, trouble = threading.Lock(), []
    cache = ModelCache(2 * models[0].nbytes, lambda _: None)

    def open_model(number: int) -> Model:
        with guard:
            if number in opening:
                trouble.append(number)
            opening.add(number)
        time.sleep(0.0005)
        with guard:
            opening.discard(number)
        return models[number]

    def work(seed: int) -> int:
        wrong = 0
        for step in range(40):
            number = (seed * 7 + step * (seed + 1)) % 5
            wrong += cache.get(number, lambda n=number: open_model(n)) is not models[number]
            wrong += len(cache) > 2
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 0
    assert not trouble
    assert not cache._opening
