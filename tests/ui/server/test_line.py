"""Whose turn it is, and what a visitor may stop."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

import vitviz.ui.service
from tests.support.makers import MakeModel
from tests.support.visits import by_visitor, on_loop
from tests.support.waiting import HANG_SECONDS, until
from vitviz.errors.kinds import LimitError
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import ProgressReport, Report, RunEnded, Step
from vitviz.ui.server.line import (
    CLOCKS,
    KEEPERS,
    MAX_NICENESS,
    RESERVE_BYTES,
    TURN_SECONDS,
    WEIGHT,
    Line,
    Once,
    current_visitor,
)
from vitviz.ui.server.quota import Quota, RequestError
from vitviz.ui.service import AnalysisService
from vitviz.worker import NICENESS


def test_a_visitor_is_who_sent_the_request() -> None:
    def asked(address: str) -> str:
        with by_visitor(address):
            return current_visitor()

    assert current_visitor() == ""
    assert asked("127.0.0.1") == "127.0.0.1" != asked("127.0.0.2")
    # Everybody has a whole network of these.
    assert asked("::1") == asked("::2")


class Held:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.begun, self.release = threading.Event(), threading.Event()

    def __call__(self, report: Report) -> None:
        self.begun.set()
        assert self.release.wait(HANG_SECONDS)


def by(address: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Work of a visitor, which has begun to wait."""
    with by_visitor(address):
        return asyncio.get_running_loop().create_task(work)


@pytest.fixture(autouse=True)
def clocks() -> None:
    """No visitor has used a place."""
    CLOCKS.clear()


class Turns:
    """The order in which visitors have places, each for a while by a clock that they move on."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.order = clock, ""

    def work(self, visitor: str, seconds: float, report: Report) -> None:
        self.order += visitor
        self.clock[0] += seconds

    def join(self, line: Line, visitors: str, seconds: float = 1.0) -> list[asyncio.Task[Any]]:
        return [by(visitor, line.run(partial(self.work, visitor, seconds))) for visitor in visitors]


@pytest.fixture
def turns(clock: list[float]) -> Turns:
    return Turns(clock)


@pytest.mark.parametrize(("visitors", "order"), [("abcd", "abcd"), ("aaaabb", "ababaa"), ("aaaaaabca", "abcaaaaaa")])
async def test_who_has_used_places_least_comes_first(turns: Turns, visitors: str, order: str) -> None:
    line, held = Line(), Held()
    tasks = [by("other", line.run(held)), *turns.join(line, visitors)]
    await asyncio.sleep(0)
    assert len(line) == 1 + len(visitors) and not turns.order
    held.release.set()
    await asyncio.gather(*tasks)
    assert turns.order == order
    await until(lambda: len(line) == 0)


async def test_who_comes_later_is_before_those_who_have_used_more_but_not_for_ever(
    turns: Turns, clock: list[float]
) -> None:
    line, first, second = Line(), Held(), Held()
    tasks = [by("a", line.run(first)), by("a", line.run(second)), *turns.join(line, "aa", 0.1)]
    await asyncio.to_thread(first.begun.wait, HANG_SECONDS)
    clock[0] += 1
    first.release.set()
    await asyncio.to_thread(second.begun.wait, HANG_SECONDS)
    # By now, the first one's clock is so many seconds ahead.
    tasks += turns.join(line, "bbb", 0.1)
    await asyncio.sleep(0)
    clock[0] += WEIGHT + 8
    tasks += turns.join(line, "c", 0.1)
    await asyncio.sleep(0)
    clock[0] -= WEIGHT + 8
    second.release.set()
    await asyncio.gather(*tasks)
    assert turns.order == "bbbaac"


async def test_the_use_of_one_line_counts_in_another(turns: Turns) -> None:
    line, held = Line(), Held()
    await asyncio.gather(*turns.join(Line(), "a"))
    tasks = [by("other", line.run(held)), *turns.join(line, "ab")]
    await asyncio.sleep(0)
    held.release.set()
    await asyncio.gather(*tasks)
    assert turns.order == "aba"


async def test_the_processes_of_those_who_have_used_much_are_nice_to_others(clock: list[float]) -> None:
    def work(seconds: float, report: Report) -> int:
        clock[0] += seconds
        return NICENESS.get()

    line = Line()
    first, second, third, _ = [await by("a", line.run(partial(work, seconds))) for seconds in (0.5, 1000, 0, 0)]
    other = await by("b", line.run(partial(work, 0)))
    assert first == other == NICENESS.get() == 0 < second < third == MAX_NICENESS


async def test_work_gives_its_place_back_at_a_report_and_goes_on_in_a_later_turn(clock: list[float]) -> None:
    order: list[str] = []
    begun, may_go_on = threading.Event(), threading.Semaphore(0)

    def steps(visitor: str, count: int, report: Report) -> str:
        for step in range(count):
            begun.set()
            assert visitor == "b" or may_go_on.acquire(timeout=HANG_SECONDS)
            # The other one is shorter than a turn.
            clock[0] += (1.2 if visitor == "a" else 0.2) * TURN_SECONDS
            order.append(visitor)
            report(ProgressReport(visitor, step, count))
        return visitor

    line = Line()
    long = [by("a", line.run(partial(steps, "a", 4))) for _ in range(2)]
    await asyncio.to_thread(begun.wait, HANG_SECONDS)
    threads, short = threading.active_count(), by("b", line.run(partial(steps, "b", 1)))
    await asyncio.sleep(0)
    may_go_on.release()
    assert await short == "b"
    # The second one of "a" has not begun.
    assert order == ["a", "b"] and threading.active_count() <= threads + 1
    may_go_on.release(7)
    assert await asyncio.gather(*long) == ["a", "a"] and order == [*"ab", *7 * "a"]


async def test_what_has_begun_is_bounded_and_ends_while_it_waits_for_another_turn(clock: list[float]) -> None:
    line, release, begun, is_ended = Line(begun=2), threading.Event(), list[str](), list[str]()
    turns = Counter[str]()

    def work(visitor: str, report: Report) -> None:
        begun.append(visitor)
        while not release.is_set():
            turns[visitor] += 1
            clock[0] += 2 * TURN_SECONDS
            report(ProgressReport(visitor))

    def end_on_waiting(step: Step) -> None:
        if "a" in is_ended and step.text.startswith("Waiting"):
            raise RunEnded

    first = by("a", line.run(partial(work, "a"), end_on_waiting))
    others = [by(visitor, line.run(partial(work, visitor))) for visitor in "bc"]
    await until(lambda: min(turns["a"], turns["b"]) > 3)
    assert begun == ["a", "b"]
    is_ended.append("a")
    with pytest.raises(RunEnded):
        await first
    await until(lambda: begun == ["a", "b", "c"])
    release.set()
    await asyncio.gather(*others)


async def test_one_visitor_has_a_share_of_the_places_and_others_the_rest() -> None:
    line, greedy, other = Line(places=3, share=2), [Held() for _ in range(3)], Held()
    tasks = [*(by("a", line.run(each)) for each in greedy), by("b", line.run(other))]
    for each in (*greedy[:2], other):
        assert await asyncio.to_thread(each.begun.wait, HANG_SECONDS)
    other.release.set()
    await tasks[-1]
    assert not greedy[2].begun.is_set()
    for each in greedy:
        each.release.set()
    await asyncio.gather(*tasks)


async def test_who_waits_has_no_thread_and_hears_how_many_come_first() -> None:
    line, held, steps = Line(), Held(), list[str]()
    first = by("a", line.run(held))
    await asyncio.to_thread(held.begun.wait, HANG_SECONDS)
    before = threading.active_count()
    waiting = [by(f"b{number}", line.run(lambda _: None, lambda step: steps.append(step.text))) for number in range(50)]
    await asyncio.sleep(0)
    assert threading.active_count() <= before
    assert steps == [f"Waiting: {number + 1} before this one" for number in range(50)]
    held.release.set()
    await asyncio.gather(first, *waiting)


async def test_who_gives_up_leaves_the_turn_to_the_next() -> None:
    line, held, ran = Line(), Held(), list[str]()

    def give_up(step: Step) -> None:
        raise RunEnded

    first = by("a", line.run(held))
    cancelled = by("b", line.run(lambda _: ran.append("b")))
    ended = by("c", line.run(lambda _: ran.append("c"), give_up))
    last = by("d", line.run(lambda _: ran.append("d")))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(RunEnded):
        await ended
    held.release.set()
    await asyncio.gather(first, last)
    assert ran == ["d"]


async def test_work_that_nobody_waits_for_keeps_its_place_until_it_ends_and_its_failure_is_no_complaint() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    line, held = Line(), Held()

    def fail(report: Report) -> None:
        held(report)
        raise LimitError("too late")

    first = by("a", line.run(fail))
    await asyncio.to_thread(held.begun.wait, HANG_SECONDS)
    first.cancel()
    second = by("b", line.run(lambda _: "done"))
    await asyncio.wait([first])
    assert first.cancelled() and len(line) == 2 and not second.done()
    held.release.set()
    assert await second == "done"
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_an_error_ends_the_turn_and_memory_that_is_missing_is_said() -> None:
    def fail(error: Exception, report: Report) -> None:
        raise error

    line, allocator = Line(), "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried"
    # Torch's own other errors are not taken for it.
    for error in (ZeroDivisionError(), RuntimeError("shapes cannot be multiplied")):
        with pytest.raises(type(error)):
            await line.run(partial(fail, error))
    for error in (MemoryError("no"), RuntimeError(allocator)):
        with pytest.raises(LimitError, match="not enough memory free; choose a smaller resolution"):
            await line.run(partial(fail, error))
    assert await line.run(lambda _: 3) == 3


async def test_work_begins_with_room_which_keepers_make(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cache:
        held = 2 * RESERVE_BYTES

        def relieve(self) -> None:
            self.held //= 2

    cache = Cache()
    KEEPERS.add(cache)
    monkeypatch.setattr("vitviz.ui.server.line.has_room", lambda nbytes: cache.held + nbytes <= limit)
    limit = 2 * RESERVE_BYTES
    assert await Line().run(lambda _: cache.held) == RESERVE_BYTES
    limit = RESERVE_BYTES
    with pytest.raises(LimitError, match="not enough memory free"):
        await Line().run(lambda _: 3)


def test_a_visitor_has_so_much_at_once_and_so_have_all() -> None:
    quota = Quota(2, "wait for your 2", most_together=3)
    with quota.held("anna"), quota.held("anna"):
        with pytest.raises(RequestError, match="wait for your 2"), quota.held("anna"):
            pass
        with quota.held("ben"), pytest.raises(RequestError, match="too much to do"), quota.held("carla"):
            pass
        assert quota.total == 2
    assert quota.total == 0


# ---- once for all who ask ----


async def test_work_is_done_once_for_all_who_ask_meanwhile() -> None:
    once: Once[int] = Once()
    results, steps, gate = iter(range(9)), list[str](), asyncio.Event()

    async def work(report: Callable[[ProgressReport], None]) -> int:
        report(ProgressReport("working"))
        await gate.wait()
        return next(results)

    asked = [by(visitor, once.get("key", work, lambda step: steps.append(step.text))) for visitor in "abcd"]
    other = by("e", once.get("another", work))
    await asyncio.sleep(0)
    asked[0].cancel()
    gate.set()
    assert await asyncio.gather(*asked[1:]) == [0] * 3 and await other == 1
    assert steps == ["working"] * 4 and await once.get("key", work) == 2


async def test_work_ends_when_the_last_who_asked_leaves_and_an_error_is_that_of_all() -> None:
    once: Once[int] = Once()
    ended = asyncio.Event()

    async def work(report: Report) -> int:
        try:
            return await asyncio.Event().wait()
        finally:
            ended.set()

    asked = [by(visitor, once.get("key", work)) for visitor in "ab"]
    await asyncio.sleep(0)
    asked[0].cancel()
    await asyncio.sleep(0)
    assert not ended.is_set()
    asked[1].cancel()
    await asyncio.wait_for(ended.wait(), HANG_SECONDS)

    async def fails(report: Report) -> int:
        raise ZeroDivisionError

    answers = await asyncio.gather(*(once.get("key", fails) for _ in "ab"), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ZeroDivisionError] * 2


# ---- analyses ----


def test_a_large_analysis_does_not_hold_up_a_small_one(
    make_model: MakeModel, picture: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = AnalysisService(make_model())
    limit = vitviz.cost(picture.path, bench.start, "squash", resolution=32).flops
    monkeypatch.setattr(vitviz.ui.service, "LARGE_FLOPS", limit)
    said: list[ProgressReport] = []
    running, release = threading.Event(), threading.Event()

    def hold(step: ProgressReport) -> None:
        said.append(step)
        running.set()
        assert release.wait(HANG_SECONDS)

    async def analyze() -> None:
        first = asyncio.create_task(bench.analyze(bench.start, picture, "squash", 64, report=hold))
        await asyncio.to_thread(running.wait, HANG_SECONDS)
        _, analysis = await bench.analyze(bench.start, picture, "squash")
        assert analysis.trace.layout.token_count < 30
        with pytest.raises(RunEnded):
            await bench.analyze(bench.start, picture, "squash", 64, report=stop_at("Waiting: 1 before this one"))
        release.set()
        await first

    on_loop(analyze())
    depth = bench.start.network.config.depth
    assert [(step.done, step.total) for step in said] == [(done, depth) for done in range(depth + 1)]


def stop_at(words: str) -> Callable[[ProgressReport], None]:
    def report(step: ProgressReport) -> None:
        assert step.text == words
        raise RunEnded

    return report
