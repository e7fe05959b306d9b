"""Whose turn it is, and what a visitor may stop."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from gradio.context import LocalContext

import vitviz.ui.service
from vitviz import Model
from vitviz.errors.kinds import LimitError
from vitviz.ui.inputs import InputSettings
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import ProgressReport
from vitviz.ui.runs import RunEnded
from vitviz.ui.server.fair_lock import FairLock, FairOrder, Ticket, current_visitor
from vitviz.ui.service import AnalysisService

Make = Callable[..., Model]


def in_a_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_who_asks_for_much_waits_for_themselves() -> None:
    order = FairOrder()
    running = order.join("greedy")
    greedy = [order.join("greedy") for _ in range(12)]
    anna, ben = order.join("anna"), order.join("ben")
    again = order.join("anna")
    assert [order.before(each) for each in (running, anna, ben, greedy[0], again, greedy[1])] == [0, 1, 2, 3, 4, 5]
    order.leave(running)
    # Whoever comes now is not behind those that the greedy one still waits for.
    assert order.before(order.join("carla")) == 2
    order.leave(anna)
    assert order.before(ben) == 0 and len(order) == 15


@pytest.mark.parametrize("seed", range(20))
def test_everybody_has_as_many_turns_as_others_while_they_wait(seed: int) -> None:
    chance, order = random.Random(seed), FairOrder()
    waiting: list[Ticket] = []
    for _ in range(300):
        if waiting and chance.random() < 0.45:
            first = next(ticket for ticket in waiting if not order.before(ticket))
            order.leave(first)
            waiting.remove(first)
        else:
            visitor = chance.choice("aaaabc")
            held = Counter(ticket.visitor for ticket in waiting)
            waiting.append(order.join(visitor))
            # Of each visitor as many turns as this one has waiting, and two more: this round's may be over for one.
            assert order.before(waiting[-1]) <= sum(min(held[other], held[visitor] + 2) for other in "abc")


def test_a_visitor_is_who_sent_the_request() -> None:
    def asked(address: str) -> str:
        token = LocalContext.request.set(SimpleNamespace(client=SimpleNamespace(host=address)))  # type: ignore[arg-type]
        try:
            return current_visitor()
        finally:
            LocalContext.request.reset(token)

    assert current_visitor() == ""
    assert asked("127.0.0.1") == "127.0.0.1" != asked("127.0.0.2")
    # Everybody has a whole network of these.
    assert asked("::1") == asked("::2")


def test_two_visitors_have_turns_by_turns() -> None:
    lock, order = FairLock(), []
    come = [threading.Event() for _ in range(6)]

    def visit(number: int, address: str) -> None:
        LocalContext.request.set(SimpleNamespace(client=SimpleNamespace(host=address)))  # type: ignore[arg-type]
        with lock.turn(lambda before: come[number].set()):
            order.append(address)

    with lock.turn():
        visitors = []
        for number, address in enumerate(["127.0.0.1"] * 4 + ["127.0.0.2"] * 2):
            visitors.append(in_a_thread(lambda number=number, address=address: visit(number, address)))
            assert come[number].wait(30)
    for thread in visitors:
        thread.join(30)
    assert [address[-1] for address in order] == ["1", "2", "1", "2", "1", "1"]


def test_everybody_has_a_turn_in_the_order_of_coming() -> None:
    lock, order, places = FairLock(), [], {}
    come = [threading.Event() for _ in range(4)]

    def visit(number: int) -> None:
        told = places.setdefault(number, [])

        def waiting(before: int) -> None:
            told.append(before)
            come[number].set()

        with lock.turn(waiting):
            order.append(number)

    with lock.turn(lambda before: pytest.fail("nobody is before the first")):
        visitors = []
        for number in range(4):
            visitors.append(in_a_thread(lambda number=number: visit(number)))
            assert come[number].wait(30)
        assert len(lock) == 5 and not order
    for thread in visitors:
        thread.join(30)
    assert order == [0, 1, 2, 3] and len(lock) == 0
    for number, told in places.items():
        assert told[0] == number + 1 and told == sorted(told, reverse=True)


def test_who_gives_up_leaves_the_place_to_the_next() -> None:
    lock, left, second = FairLock(), threading.Event(), []

    def gives_up(before: int) -> None:
        raise RunEnded

    with lock.turn():
        with pytest.raises(RunEnded), lock.turn(gives_up):
            pytest.fail("it is not its turn")
        assert len(lock) == 1
        thread = in_a_thread(lambda: second.append(enter(lock, left)))
        assert left.wait(30)
    thread.join(30)
    assert second == [True] and len(lock) == 0


def enter(lock: FairLock, asked: threading.Event) -> bool:
    with lock.turn(lambda before: asked.set()):
        return True


def test_an_error_in_a_turn_ends_it() -> None:
    lock = FairLock()
    with pytest.raises(ZeroDivisionError), lock.turn():
        _ = 1 / 0
    with lock.turn():
        assert len(lock) == 1


def test_a_large_analysis_does_not_hold_up_a_small_one(
    make_model: Make, picture: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, small, large = AnalysisService(make_model()), InputSettings("squash"), InputSettings("squash", 64)
    limit = vitviz.cost(picture.path, bench.start, "squash", resolution=32).flops
    monkeypatch.setattr(vitviz.ui.service, "LARGE_FLOPS", limit)
    said: list[ProgressReport] = []
    running, release = threading.Event(), threading.Event()

    def hold(step: ProgressReport) -> None:
        said.append(step)
        running.set()
        assert release.wait(30)

    thread = in_a_thread(lambda: bench.analyze(bench.start, picture, large, hold))
    assert running.wait(30)
    _, analysis = bench.analyze(bench.start, picture, small)
    assert analysis.trace.layout.token_count < 30
    with pytest.raises(RunEnded):
        bench.analyze(bench.start, picture, large, stop_at("Waiting: 1 before this one"))
    release.set()
    thread.join(30)
    depth = bench.start.network.config.depth
    assert [(step.done, step.total) for step in said] == [(done, depth) for done in range(depth + 1)]


def stop_at(words: str) -> Callable[[ProgressReport], None]:
    def report(step: ProgressReport) -> None:
        assert step.text == words
        raise RunEnded

    return report


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_a_machine_without_memory_says_so_and_goes_on(
    make_model: Make, picture: Upload, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    bench = AnalysisService(make_model())

    def fails(*arguments: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(bench, "forward", fails)
        with pytest.raises(LimitError, match="not enough memory free; choose a smaller resolution"):
            bench.analyze(bench.start, picture, InputSettings("squash"))
    _, analysis = bench.analyze(bench.start, picture, InputSettings("squash"))
    with monkeypatch.context() as patched:
        patched.setattr("vitviz.analysis.analysis.Analysis._required", fails)
        with pytest.raises(LimitError, match=r"rollout at .* tokens: this machine"):
            analysis.rollout()
    assert analysis.rollout().values.sum() > 0


def test_another_error_of_torch_is_not_taken_for_it(
    make_model: Make, picture: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = AnalysisService(make_model())

    def fails(*arguments: Any) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(bench, "forward", fails)
    with pytest.raises(RuntimeError, match="shapes"):
        bench.analyze(bench.start, picture, InputSettings("squash"))
