"""Whose turn it is, what a visitor may stop, and what whoever runs the app may set."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from gradio.context import LocalContext

import vitviz.ui.service
from vitviz import Model, VitvizError
from vitviz.errors.kinds import CheckpointError, ConfigError, LimitError
from vitviz.ui.inputs import InputSettings
from vitviz.ui.jobs import JobCancelled
from vitviz.ui.knobs import PREFIX, Knobs, table
from vitviz.ui.models import START, ModelChoice, menu
from vitviz.ui.pictures import Upload
from vitviz.ui.server.lanes import FairOrder, Lane, Ticket, current_visitor
from vitviz.ui.service import AnalysisService, Step

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
    lane, order = Lane(), []
    come = [threading.Event() for _ in range(6)]

    def visit(number: int, address: str) -> None:
        LocalContext.request.set(SimpleNamespace(client=SimpleNamespace(host=address)))  # type: ignore[arg-type]
        with lane.turn(lambda before: come[number].set()):
            order.append(address)

    with lane.turn():
        visitors = []
        for number, address in enumerate(["127.0.0.1"] * 4 + ["127.0.0.2"] * 2):
            visitors.append(in_a_thread(lambda number=number, address=address: visit(number, address)))
            assert come[number].wait(30)
    for thread in visitors:
        thread.join(30)
    assert [address[-1] for address in order] == ["1", "2", "1", "2", "1", "1"]


def test_everybody_has_a_turn_in_the_order_of_coming() -> None:
    lane, order, places = Lane(), [], {}
    come = [threading.Event() for _ in range(4)]

    def visit(number: int) -> None:
        told = places.setdefault(number, [])

        def waiting(before: int) -> None:
            told.append(before)
            come[number].set()

        with lane.turn(waiting):
            order.append(number)

    with lane.turn(lambda before: pytest.fail("nobody is before the first")):
        visitors = []
        for number in range(4):
            visitors.append(in_a_thread(lambda number=number: visit(number)))
            assert come[number].wait(30)
        assert len(lane) == 5 and not order
    for thread in visitors:
        thread.join(30)
    assert order == [0, 1, 2, 3] and len(lane) == 0
    for number, told in places.items():
        assert told[0] == number + 1 and told == sorted(told, reverse=True)


def test_who_gives_up_leaves_the_place_to_the_next() -> None:
    lane, left, second = Lane(), threading.Event(), []

    def gives_up(before: int) -> None:
        raise JobCancelled

    with lane.turn():
        with pytest.raises(JobCancelled), lane.turn(gives_up):
            pytest.fail("it is not its turn")
        assert len(lane) == 1
        thread = in_a_thread(lambda: second.append(enter(lane, left)))
        assert left.wait(30)
    thread.join(30)
    assert second == [True] and len(lane) == 0


def enter(lane: Lane, asked: threading.Event) -> bool:
    with lane.turn(lambda before: asked.set()):
        return True


def test_an_error_in_a_turn_ends_it() -> None:
    lane = Lane()
    with pytest.raises(ZeroDivisionError), lane.turn():
        _ = 1 / 0
    with lane.turn():
        assert len(lane) == 1


def test_a_large_analysis_does_not_hold_up_a_small_one(
    make_model: Make, picture: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, small, large = AnalysisService(make_model()), InputSettings("squash"), InputSettings("squash", 64)
    limit = vitviz.cost(picture.path, bench.start, "squash", resolution=32).flops
    monkeypatch.setattr(vitviz.ui.service, "LARGE_FLOPS", limit)
    said: list[Step] = []
    running, release = threading.Event(), threading.Event()

    def hold(step: Step) -> None:
        said.append(step)
        running.set()
        assert release.wait(30)

    thread = in_a_thread(lambda: bench.analyze(bench.start, picture, large, hold))
    assert running.wait(30)
    _, analysis = bench.analyze(bench.start, picture, small)
    assert analysis.trace.layout.token_count < 30
    with pytest.raises(JobCancelled):
        bench.analyze(bench.start, picture, large, stop_at("Waiting: 1 before this one"))
    release.set()
    thread.join(30)
    depth = bench.start.network.config.depth
    assert [(step.done, step.total) for step in said] == [(done, depth) for done in range(depth + 1)]


def stop_at(words: str) -> Callable[[Step], None]:
    def report(step: Step) -> None:
        assert step.text == words
        raise JobCancelled

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


# Knobs.


def test_knobs_are_read_from_the_environment() -> None:
    said = {
        "VITVIZ_ANALYSIS_BYTES": "1.5 GiB",
        "VITVIZ_CACHE_BYTES": "64MiB",
        "VITVIZ_MODEL_BYTES": "1000000",
        "VITVIZ_KEEP_HOURS": "0.5",
        "VITVIZ_THREADS": " 3 ",
        "VITVIZ_MODELS": "menu",
        "VITVIZ_UPLOAD_BYTES": "",
        "HOME": "/",
    }
    assert Knobs.of(said) == Knobs(3 * 2**29, 64 * 2**20, 10**6, keep_hours=0.5, threads=3, models="menu")
    assert Knobs.of(said).keep_seconds == 1800
    assert Knobs.of({}) == Knobs()


NO_NUMBERS = ["0", "-1", "many", "1e9", "nan", "inf", "٣", "9" * 40]
# A host may have any of these names but one.
NO_HOSTS = ["٣", "a b", "a/b", "http://localhost"]


@pytest.mark.parametrize(
    ("part", "word"),
    [(part, word) for part in fields(Knobs) for word in (NO_HOSTS if part.name == "hosts" else NO_NUMBERS)],
    ids=lambda each: getattr(each, "name", each),
)
def test_what_is_no_value_of_a_knob_is_refused_by_its_name(part: Any, word: str) -> None:
    name = f"{PREFIX}{part.name.upper()}"
    with pytest.raises(ConfigError, match=f"{name} = .*: expected "):
        Knobs.of({name: word})


def test_the_table_of_knobs_has_them_all() -> None:
    rows = table().splitlines()
    assert len(rows) == 2 + len(fields(Knobs))
    for part, row in zip(fields(Knobs), rows[2:], strict=True):
        assert row.startswith(f"| `{PREFIX}{part.name.upper()}` | ")
        shown = row.split("`")[3] if part.default is not None else ""
        assert Knobs.of({f"{PREFIX}{part.name.upper()}": shown}) == Knobs()


@pytest.mark.parametrize(("legal", "opened"), [("start", 0), ("menu", 1), ("all", 2)])
def test_a_server_may_open_only_some_models(make_model: Make, legal: str, opened: int) -> None:
    bench = AnalysisService(make_model(), Knobs(models=legal))
    assert bench.model(START) is bench.start
    for number, choice in enumerate([ModelChoice("vitviz-cifar10"), ModelChoice("", ("/nowhere/a.pth",))]):
        with pytest.raises(VitvizError) as refused:
            bench.model(choice)
            raise CheckpointError("opened")
        assert ("this server opens only" in str(refused.value)) == (number >= opened)
    offered = len(menu(bench.start, legal))
    assert (offered == 1) == (legal == "start")


def test_what_an_analysis_may_need_is_a_knob(make_model: Make, picture: Upload) -> None:
    with pytest.raises(LimitError, match="max_bytes = 1,000"):
        AnalysisService(make_model(), Knobs(analysis_bytes=1000)).analyze(make_model(), picture)
