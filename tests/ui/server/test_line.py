"""Whose turn it is, and what a visitor may stop."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
import torch

import vitviz.ui.service
from tests.support.makers import MakeModel
from tests.support.visits import by_visitor, on_loop
from tests.support.waiting import HANG_SECONDS, until
from vitviz.errors.kinds import LimitError
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import ProgressReport, Report, RunEnded, Step
from vitviz.ui.server.line import BACKGROUND_NICENESS, RESERVE_BYTES, Line, Once
from vitviz.ui.service import AnalysisService
from vitviz.worker.child import IS_LINUX


class Held:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.begun, self.release = threading.Event(), threading.Event()

    def __call__(self, report: Report) -> None:
        self.thread = threading.get_ident()
        self.begun.set()
        assert self.release.wait(HANG_SECONDS)


def by(address: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Work of a visitor, which has begun to wait."""
    with by_visitor(address):
        return asyncio.get_running_loop().create_task(work)


class Turns:
    """The order in which visitors have places, each for a second of a clock that they move on."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.order = clock, ""

    def work(self, visitor: str, report: Report) -> None:
        self.order += visitor
        self.clock[0] += 1

    def join(self, line: Line, visitors: str) -> list[asyncio.Task[Any]]:
        return [by(visitor, line.run(partial(self.work, visitor))) for visitor in visitors]


@pytest.fixture
def turns(clock: list[float]) -> Turns:
    return Turns(clock)


@pytest.mark.parametrize(
    ("visitors", "order"),
    # "h" has the place while they come.
    [("abcd", "abcd"), ("aaaabb", "ababaa"), ("aaaaaabca", "abcaaaaaa"), ("hhab", "habh"), ("hhha", "hahh")],
)
async def test_who_was_served_longest_ago_is_next(turns: Turns, visitors: str, order: str) -> None:
    line, held = Line(), Held()
    tasks = [by("h", line.run(held)), *turns.join(line, visitors)]
    await asyncio.sleep(0)
    assert len(line) == 1 + len(visitors) and not turns.order
    held.release.set()
    await asyncio.gather(*tasks)
    assert turns.order == order
    await until(lambda: len(line) == 0)


async def test_new_addresses_without_end_hold_up_nobody_for_ever(turns: Turns) -> None:
    """Whoever is new comes before those who were served lately, and not before all."""
    line, held = Line(), Held()

    async def flood(name: str) -> None:
        for number in range(1000):
            await by(f"{name}{number}", line.run(lambda _: None))

    first = by("h", line.run(held))
    known = turns.join(line, "aa")
    floods = [asyncio.create_task(flood(name)) for name in "xyz"]
    await asyncio.sleep(0)
    held.release.set()
    await asyncio.gather(first, *known)
    assert not any(each.done() for each in floods)
    for each in floods:
        each.cancel()
    await asyncio.wait(floods)


async def test_work_at_the_same_time_shares_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    counts = dict[int, int]()
    # Apps of other tests may set theirs meanwhile.
    monkeypatch.setattr(torch, "set_num_threads", lambda count: counts.update({threading.get_ident(): count}))
    line, held = Line(places=2), [Held() for _ in range(2)]
    tasks = list[asyncio.Task[Any]]()
    for each in held:
        tasks.append(by("a", line.run(each)))
        assert await asyncio.to_thread(each.begun.wait, HANG_SECONDS)
    for each in held:
        each.release.set()
    assert [counts[each.thread] for each in held] == [4, 2]
    await asyncio.gather(*tasks)
    line.has_even_shares = True
    assert await line.run(lambda _: counts[threading.get_ident()]) == 2


@pytest.mark.skipif(not IS_LINUX, reason="elsewhere threads have no priority of their own")
async def test_long_work_is_nice_to_others() -> None:
    def niceness(report: Report) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert await Line(is_long=True).run(niceness) == max(await Line().run(niceness), BACKGROUND_NICENESS)


async def test_work_of_strangers_ends_at_a_report_after_its_time(clock: list[float]) -> None:
    def work(seconds: float, report: Report) -> str:
        clock[0] += seconds
        report(ProgressReport("half"))
        return "done"

    line = Line()
    assert await line.run(partial(work, 10**6)) == "done"
    line.seconds = 120.0
    assert await line.run(partial(work, 119)) == "done"
    with pytest.raises(LimitError, match="more than 120 seconds of this server; expected a smaller picture"):
        await line.run(partial(work, 121))


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


async def test_work_begins_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()
    monkeypatch.setattr("vitviz.ui.server.line.has_room", lambda nbytes: asked.append(nbytes) or len(asked) > 1)
    # What is free is given back to the system first.
    assert await Line().run(lambda _: 3) == 3 and asked == [RESERVE_BYTES] * 2
    monkeypatch.setattr("vitviz.ui.server.line.has_room", lambda nbytes: False)
    with pytest.raises(LimitError, match="not enough memory free"):
        await Line().run(lambda _: 3)


# ---- once for all who ask ----


async def test_work_is_done_once_for_all_who_ask_meanwhile() -> None:
    """By the first who stays, and for each key apart."""
    once, made, begun, gate = Once(), dict[str, str](), list[str](), asyncio.Event()

    async def ask(key: str, visitor: str) -> str:
        async with once(key):
            if key not in made:
                begun.append(visitor)
                await gate.wait()
                made[key] = visitor
        return made[key]

    asked = [by(visitor, ask("key", visitor)) for visitor in "abcd"]
    other = by("e", ask("another", "e"))
    await asyncio.sleep(0)
    asked[0].cancel()
    gate.set()
    assert await asyncio.gather(*asked[1:]) == ["b"] * 3 and await other == "e"
    assert begun == ["a", "e", "b"] and not once._locks


# ---- analyses ----


def test_a_large_analysis_does_not_hold_up_a_small_one(
    make_model: MakeModel, picture: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = AnalysisService(make_model())
    limit = vitviz.cost(picture.path, bench.models.start, "squash", resolution=32).flops
    monkeypatch.setattr(vitviz.ui.service, "LARGE_FLOPS", limit)
    said: list[ProgressReport] = []
    running, release = threading.Event(), threading.Event()

    def hold(step: ProgressReport) -> None:
        said.append(step)
        running.set()
        assert release.wait(HANG_SECONDS)

    def hold_too(step: ProgressReport) -> None:
        assert release.wait(HANG_SECONDS)

    async def analyze() -> None:
        first, second = (
            asyncio.create_task(bench.analyze(bench.models.start, picture, "squash", 64, report=report))
            for report in (hold, hold_too)
        )
        await asyncio.to_thread(running.wait, HANG_SECONDS)
        await until(lambda: len(bench.long) == 2)
        _, analysis = await bench.analyze(bench.models.start, picture, "squash")
        assert analysis.trace.layout.token_count < 30
        with pytest.raises(RunEnded):
            await bench.analyze(bench.models.start, picture, "squash", 64, report=stop_at("Waiting: 1 before this one"))
        release.set()
        await asyncio.gather(first, second)

    on_loop(analyze())
    depth = bench.models.start.network.config.depth
    assert [(step.done, step.total) for step in said] == [(done, depth) for done in range(depth + 1)]


def stop_at(words: str) -> Callable[[ProgressReport], None]:
    def report(step: ProgressReport) -> None:
        assert step.text == words
        raise RunEnded

    return report
