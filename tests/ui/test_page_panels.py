"""The panels below the canvas: comparing methods, switching parts off, the tour, and what the model is."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from json import dumps as as_json
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Locator, Page, expect

import vitviz
from tests.driver import (
    EXPLORER,
    ask,
    box_of,
    caption,
    choose_example,
    choose_layout,
    choose_method,
    choose_option,
    click,
    click_cell,
    click_patch,
    close_menus,
    first_view,
    open_link,
    open_menu,
    open_panel,
    opened_page,
    page_at,
    save_figure,
    settle,
    state,
    write,
)
from tests.support.example import EXAMPLE
from tests.towers import make_transformers
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import SmallApp, small_app
from vitviz import METHODS, Analysis, Model
from vitviz.errors import MethodError
from vitviz.errors.number_text import digits, percent
from vitviz.evaluation.comparison import Comparison, compare
from vitviz.metrics.faithfulness import METRICS
from vitviz.ui import progress_reports
from vitviz.ui.progress_reports import RunEnded
from vitviz.ui.runs import Run

pytestmark = pytest.mark.browser

# Of a model with a CLS token and without attention pooling, as the bundled one.
SERVING = [name for name in METHODS if name != "pooling_attention"]
# All maps with all their scores, on a machine with much else to do.
COMPARE_SECONDS = 120


@pytest.fixture
def tiny_page(browser: Browser, tiny: SmallApp) -> Iterator[Page]:
    """Of so few patches that all maps with all their scores are soon there."""
    with page_at(browser, tiny.address) as found:
        yield found


def cards(page: Page) -> Locator:
    return page.locator(".vx-compared")


def order(page: Page) -> list[str]:
    found: list[str] = cards(page).evaluate_all("all => all.map((card) => card.dataset.method)")
    return found


def start_comparison(page: Page) -> None:
    open_panel(page, "compare")
    page.locator(".vx-compare-start").click()
    expect(cards(page)).to_have_count(len(SERVING), timeout=1000 * COMPARE_SECONDS)


def expect_scores(page: Page, found: Comparison) -> None:
    for each in found.maps:
        card = page.locator(f'.vx-compared[data-method="{each.method}"]')
        expect(card).to_contain_text(METHODS[each.method].title)
        expect(card).to_contain_text(METHODS[each.method].interpretation)
        card.locator("summary").click()
        wins = 0
        for metric, area in each.areas.items():
            row = card.get_by_role("row").filter(has_text=re.compile(f"^{METRICS[metric].title}"))
            said = re.search(r"(\S+), (better|worse) than chance \((\S+)\)", row.inner_text())
            assert said is not None, row.inner_text()
            for text, value in ((said[1], area), (said[3], found.chance[metric])):
                # The last digit may be of either side where the server's sums end half-way between two.
                assert text in {digits(value * (1 + slip)) for slip in (-1e-4, 0, 1e-4)}, (text, value)
            assert (said[2] == "better") == found.beats_chance(each, metric)
            wins += found.beats_chance(each, metric)
        if len(each.areas) == len(METRICS):
            expect(card.locator("summary")).to_have_text(f"better than chance by {wins} of {len(METRICS)} measures")


# ---- comparing ----


def test_all_maps_stand_side_by_side_with_their_scores(tiny_page: Page, tiny: SmallApp) -> None:
    page, example = tiny_page, tiny.analysis
    start_comparison(page)
    found = compare(example)
    assert order(page) == SERVING
    expect_scores(page, found)
    for metric in METRICS.values():
        page.locator(".vx-compare-order").select_option(metric.name)
        areas = {each.method: each.areas[metric.name] for each in found.maps}
        ordered = [areas[name] for name in order(page)]
        better = sorted(areas.values(), reverse=not metric.lower_is_better)
        assert ordered == pytest.approx(better, abs=2e-3)
    # Each has its own scale unless all are to have one.
    drawn = "() => [...document.querySelectorAll('.vx-compared canvas')].map((canvas) => canvas.toDataURL())"
    before = page.evaluate(drawn)
    page.locator(".vx-compare-scale").check()
    after = page.evaluate(drawn)
    assert sum(one != other for one, other in zip(before, after, strict=True)) >= len(SERVING) - 1
    # A card lies on its picture as the map on the canvas does; scores stay folded or unfolded.
    cards(page).nth(1).locator("summary").click()
    unfolded = "() => [...document.querySelectorAll('.vx-compared details')].map(({ open }) => open)"
    chosen = page.evaluate(unfolded)
    page.locator(".vx-fade").uncheck()
    settle(page)
    assert page.evaluate(unfolded) == chosen and len(set(chosen)) == 2
    assert sum(one != other for one, other in zip(after, page.evaluate(drawn), strict=True)) == len(SERVING)
    # A card leads to its map.
    page.get_by_role("button", name="Show LeGrad on the picture").click()
    assert first_view(page)["method"] == "legrad"


@pytest.mark.parametrize("left", ["panel", "picture", "stop"])
def test_scores_come_card_by_card_until_the_visitor_leaves(
    tiny_page: Page, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    page, gate, ended, calls = tiny_page, threading.Event(), threading.Event(), list[str]()
    original = Analysis.faithfulness
    # However soon the first scores are there, the rest takes time.
    monkeypatch.setattr(progress_reports, "CERTAIN_SHARE", 0.0)
    monkeypatch.setattr(progress_reports, "time", SimpleNamespace(monotonic=lambda: 600 * monotonic()))

    def held(self: Analysis, *given: Any, **named: Any) -> Any:
        calls.append("")
        if len(calls) == 3:
            assert gate.wait(COMPARE_SECONDS)
        try:
            return original(self, *given, **named)
        except RunEnded:
            ended.set()
            raise

    stopped, end = threading.Event(), Run.end

    def noticed(self: Run) -> None:
        end(self)
        stopped.set()

    monkeypatch.setattr(Analysis, "faithfulness", held)
    monkeypatch.setattr(Run, "end", noticed)
    try:
        open_panel(page, "compare")
        page.locator(".vx-compare-start").click()
        first, others = (
            page.locator('.vx-compared[data-method="attention"]'),
            page.locator(".vx-compared:nth-child(n + 2)"),
        )
        # The rest waits until the gate opens.
        so_far = r"Deletion 0\.\d+; 5 of 5 measures, without chance, so far"
        expect(first.locator("summary")).to_have_text(re.compile(so_far), timeout=1000 * COMPARE_SECONDS)
        expect(others.first.locator("p").last).to_have_text("Its scores follow …")
        expect(page.locator(".vx-busy-text")).to_have_text(
            re.compile(r"^Scores of all methods: about \d+ (s|min) left$")
        )
        # The rest of the card is there as well.
        expect(first).to_contain_text(METHODS["attention"].interpretation)
        first.locator("summary").click()
        row = first.get_by_role("row").filter(has_text="Deletion")
        expect(row).to_have_text(re.compile(r"0\.\d+$"))
        stopped.clear()
        if left == "picture":
            open_menu(page, "pictures")
            page.locator('.vx-all-examples button[data-example="example:coffee.jpg"]').click()
        elif left == "stop":
            page.get_by_role("button", name="Stop").click()
        else:
            page.locator('[data-panel="compare"] > summary').click()
        # The rest must not be over before the server hears of it.
        assert stopped.wait(COMPARE_SECONDS)
    finally:
        gate.set()
    assert ended.wait(COMPARE_SECONDS)
    settle(page)
    if left != "picture":
        # What was there stays, and says that it is not all.
        open_panel(page, "compare")
        expect(page.locator(".vx-compare-said")).to_have_text("Stopped.")
        expect(first.locator("summary")).to_have_text(re.compile(so_far))
        expect(others.first.locator("p").last).to_be_empty()


# ---- switching off ----


def expect_changes(page: Page, analysis: Analysis, heads: set[tuple[int, int]], patches: set[tuple[int, int]]) -> None:
    settle(page)
    table = page.locator(".vx-changes")
    if not heads and not patches:
        expect(table).not_to_be_visible()
        return
    before = analysis.logits.softmax(-1)
    after = analysis.switched_off(heads, patches).softmax(-1)
    rows = table.locator("tbody tr")
    count = min(5, len(before))
    best = {*before.topk(count).indices.tolist(), *after.topk(count).indices.tolist()}
    expect(rows).to_have_count(len(best))
    for index in best:
        row = rows.filter(has=page.get_by_role("rowheader", name=analysis.model.labels[index], exact=True))
        cells = row.locator("td").all_inner_texts()
        for text, share in zip(cells, (before[index], after[index]), strict=False):
            assert float(text.rstrip("%")) == pytest.approx(100 * float(share), abs=0.06, rel=0.06)
        # As exact as the probabilities beside it.
        assert re.fullmatch(r"no change|[+−](\d+\.\d|0\.0+\d|\de-\d+) points", cells[2]), cells
        change = float(cells[2].split()[0].replace("−", "-")) if cells[2] != "no change" else 0
        assert change == pytest.approx(100 * float(after[index] - before[index]), abs=0.06)
    # The answer above the picture is the one without what is hidden.
    headline, label = page.locator(".vx-headline"), analysis.model.labels[int(after.argmax())].split(",")[0]
    expect(headline.locator("b")).to_have_text(label)
    was, now = re.findall(r"[\d.]+(?= →| ?%)", headline.inner_text())
    for text, share in ((was, before[int(after.argmax())]), (now, after.max())):
        assert float(text) == pytest.approx(100 * float(share), abs=0.51)
    for parts, name in ((patches, "square"), (heads, "head")):
        assert not parts or re.search(rf"^Without .*\b{len(parts)} {name}", headline.inner_text())


def test_heads_are_ranked_by_their_attention_to_marked_patches(page: Page, example: Analysis) -> None:
    trace, cell = example.trace, page.locator(".vx-cell")
    layout, marked, query = trace.layout, [(3, 5), (3, 6), (4, 6)], (7, 7)
    even = percent(len(marked) / layout.patch_count)
    click_patch(page, example, *query)
    # Without a sentence, all below it would jump.
    watch = "() => { window.empty |= !document.querySelector('.vx-cell').textContent; }"
    page.evaluate(f"new MutationObserver({watch}).observe(document.querySelector('.vx-cell'), {{ childList: true }})")
    # Squares are marked where they are hidden, and where they are pinned; one may be both.
    hidden, pinned = f"patches_off: {as_json(marked)}", f"patches_off: [[3, 5]], pins: {as_json(marked)}"
    for direction, change, opening in (
        ("row", hidden, "Attention from patch (7, 7) lies most on"),
        ("row", pinned, "Attention from patch (7, 7) lies most on"),
        ("column", pinned, "Attention to patch (7, 7) comes most from"),
    ):
        values = layout.grid(trace.rows(query) if direction == "row" else trace.columns(query))
        shares = torch.stack([values[..., row, column] for row, column in marked]).sum(0) / values.sum((-1, -2))
        best = [divmod(int(index), trace.heads) for index in shares.flatten().argsort(descending=True)[:3]]
        named = "; ".join(f"layer {layer}, head {head} ({percent(float(shares[layer, head]))})" for layer, head in best)
        page.evaluate(f"{EXPLORER}.store.ask([{{ direction: '{direction}' }}])")
        page.evaluate(f"{EXPLORER}.store.patchView(0, {{ {change} }})")
        page.mouse.move(1, 1)
        bars = f"Orange bars show how much; evenly spread, it would be {even}."
        expect(cell).to_have_text(f"{opening} the 3 marked squares in {named}. {bars}")
    assert not page.evaluate("window.empty")
    choose_option(page, "direction", "row")
    shares = layout.grid(trace.rows(query))[..., 3, 5] / layout.grid(trace.rows(query)).sum((-1, -2))
    page.evaluate(f"{EXPLORER}.store.patchView(0, {{ patches_off: [[3, 5]], pins: [] }})")
    click_cell(page, example, 2, 1)
    expect(cell).to_contain_text(f"; {percent(float(shares[2, 1]))} on the marked squares.")


def test_patches_and_heads_are_switched_off_and_on(page: Page, example: Analysis) -> None:
    keys, question = page.keyboard, page.locator(".vx")
    open_panel(page, "switches")
    layer = {(4, number) for number in range(6)}
    for act, heads, patches in (
        (lambda: click_patch(page, example, 3, 4), set(), {(3, 4)}),
        (lambda: click_patch(page, example, 2, 4), set(), {(3, 4), (2, 4)}),
        (lambda: click_cell(page, example, 1, 2), {(1, 2)}, {(3, 4), (2, 4)}),
        # The first cell of a layer stands for all of its heads.
        (lambda: click_cell(page, example, 4), {(1, 2), *layer}, {(3, 4), (2, 4)}),
        (lambda: click_cell(page, example, 4), {(1, 2)}, {(3, 4), (2, 4)}),
        (lambda: click_patch(page, example, 3, 4), {(1, 2)}, {(2, 4)}),
        (page.locator(".vx-all-on").click, set(), set()),
    ):
        act()
        expect_changes(page, example, heads, patches)
    # A patch that is switched off is not asked.
    assert first_view(page)["parameters"] == {}
    # The keys hide as the pointer does.
    page.locator(".vx-canvas").first.focus()
    for key, hidden in (
        ("ArrowRight", set()),
        ("Enter", {(0, 0)}),
        ("ArrowDown", {(0, 0)}),
        ("Enter", {(0, 0), (1, 0)}),
    ):
        keys.press(key)
        expect_changes(page, example, set(), hidden)
    click(page, ".vx-all-on")
    # From any other question, Alt and a click ask this one; so does Enter on the cell that the arrow keys chose.
    ask(page, "token")
    click_cell(page, example, 2, 3, modifiers=["Alt"])
    expect_changes(page, example, {(2, 3)}, set())
    expect(page.locator(".vx-cell")).to_contain_text("Layer 2, head 3, switched off")
    assert question.get_attribute("data-question") == "hide" and "heads-off=2.3" in page.url
    ask(page, "token")
    page.locator(".vx-sheet").focus()
    for key in ("ArrowUp", "ArrowRight", "Enter"):
        keys.press(key)
    expect_changes(page, example, {(2, 3), (6, 0)}, set())
    # A menu is no question of its own, and what was copied in it is of what was shown then.
    save = open_panel(page, "save")
    save.locator("[data-act=link]").click()
    expect(save.locator(".vx-code")).to_contain_text("panel=switches")
    assert question.get_attribute("data-question") == "hide"
    close_menus(page)
    expect(open_panel(page, "save").locator(".vx-said")).to_be_empty()
    close_menus(page)
    # Comparing hides nothing more: a click on the other map chooses it.
    click(page, ".vx-compare-open")
    page.locator(".vx-canvas").nth(1).click()
    assert [view["patches_off"] for view in state(page)["views"]] == [[], []]
    assert question.get_attribute("data-question") == "token"
    choose_layout(page, "one")
    # What is hidden stays said, whatever is asked; another picture is whole.
    expect(page.locator(".vx-headline")).to_contain_text("Without 2 heads")
    expect(page.locator(".vx-all-on")).to_be_visible()
    choose_example(page, "coffee.jpg")
    assert first_view(page)["heads_off"] == []
    expect(page.locator(".vx-all-on")).to_be_hidden()


@pytest.mark.parametrize(
    ("heads", "patches", "words"), [([], [[3, 4], [3, 5]], "whole picture"), ([[1, 0]], [], "whole picture, all heads")]
)
def test_what_is_made_of_the_whole_picture_says_so_while_something_is_hidden(
    tiny_page: Page, heads: list[list[int]], patches: list[list[int]], words: str
) -> None:
    page, badge, whole = tiny_page, tiny_page.locator(".vx-badge").first, tiny_page.locator(".vx-whole")
    hidden, pins = (
        f"{{ heads_off: {heads}, patches_off: {patches} }}",
        "{ pins: [[1, 1]], heads_off: [], patches_off: [] }",
    )
    page.evaluate(f"{EXPLORER}.store.patchView(0, {pins})")
    settle(page)
    # Sheet, strip of layers, pins, probes and the comparison of methods.
    expect(whole).to_have_text([""] * 5)
    for question in ("token", "target", "layers", "hide"):
        ask(page, question)
        expect(badge).not_to_contain_text("whole picture")
        page.evaluate(f"{EXPLORER}.store.patchView(0, {hidden})")
        expect(badge).to_have_text(re.compile(f"^{words} · "))
        expect(whole).to_have_text([words] * 5)
        settle(page)
        page.evaluate(f"{EXPLORER}.store.patchView(0, {pins})")
        settle(page)
    page.evaluate(f"{EXPLORER}.store.patchView(0, {hidden})")
    for content in ("maps", "sheet"):
        drawing = save_figure(page, "svg", content, ("badge",))
        assert f"{words} · " in drawing.read_text(encoding="utf-8")
        close_menus(page)
    # The difference of two, one of which is whole.
    ask(page, "token")
    choose_layout(page, "difference")
    page.evaluate(f"{EXPLORER}.store.patchView(1, {pins})")
    expect(page.locator(".vx-badge")).to_have_text(
        [re.compile(f"^{words} · "), re.compile("^(?!whole)"), re.compile(f"^{words} · A − B")]
    )


def test_bars_and_headline_are_never_of_the_whole_picture_while_something_is_hidden(
    tiny_page: Page, tiny: SmallApp
) -> None:
    page, example, kinds, gate = tiny_page, tiny.analysis, tiny.handlers.kinds, asyncio.Event()
    switch, loop = kinds["switch"], None
    headline, outputs = page.locator(".vx-headline"), page.locator(".vx-predictions output")

    async def held(*given: Any) -> dict[str, Any]:
        nonlocal loop
        loop = asyncio.get_running_loop()
        await gate.wait()
        return await switch(*given)

    whole = example.logits.softmax(-1)
    after = example.switched_off(patches=[(1, 1)]).softmax(-1)
    before_first = [f"{bar_of(value)[:-1]} → …" for value in whole.sort(descending=True).values]
    tiny.handlers.kinds["switch"] = held
    try:
        page.evaluate(f"{EXPLORER}.store.patchView(0, {{ patches_off: [[1, 1]] }})")
        expect(headline).to_have_text("Without 1 square: of the 3 things it knows, …")
        expect(outputs).to_have_text(before_first)
        page.wait_for_function(f"{EXPLORER}.requests.running")
    finally:
        tiny.handlers.kinds["switch"] = switch
        assert loop is not None
        loop.call_soon_threadsafe(gate.set)
    # Also where something else is measured, and of either of two maps of one picture.
    for target in (None, {"class": 0, "against": 1}, {"margin": True}):
        page.evaluate(
            f"(target) => {EXPLORER}.store.patchView(0, {{ method: 'relevance', parameters: {{ target }} }})", target
        )
        expect_answer(page, whole, after)
    second = "{ ...state.views[0], patches_off: [[2, 2]] }"
    page.evaluate(
        f"{{ const {{ store }} = {EXPLORER}, {{ state }} = store;"
        f"store.patch({{ layout: 'two', views: [state.views[0], {second}] }}); }}"
    )
    settle(page)
    page.locator(".vx-canvas").nth(1).click()
    expect_answer(page, whole, example.switched_off(patches=[(2, 2)]).softmax(-1))
    page.locator(".vx-canvas").nth(0).click()
    expect_answer(page, whole, after)

    # What fails leaves no answer, least of all that of before.
    async def failing(*given: Any) -> dict[str, Any]:
        raise MethodError("no answer")

    tiny.handlers.kinds["switch"] = failing
    try:
        page.evaluate(f"{EXPLORER}.store.patchView(0, {{ patches_off: [[2, 1], [2, 2]] }})")
        expect(page.locator(".vx-switch-said")).to_contain_text("no answer")
    finally:
        tiny.handlers.kinds["switch"] = switch
    expect(headline).to_have_text("Without 2 squares: of the 3 things it knows, …")
    expect(outputs).to_have_text(before_first)


def bar_of(probability: torch.Tensor) -> str:
    """What stands beside a bar: whole percent, with a decimal where it is small."""
    value = float(probability)
    return percent(value) if value < 0.1 else f"{value:.0%}"


def expect_answer(page: Page, before: torch.Tensor, after: torch.Tensor) -> None:
    """Bars and headline are of what is hidden."""
    order = after.argsort(descending=True).tolist()
    texts = [f"{bar_of(before[index])[:-1]} → {bar_of(after[index])}" for index in order]
    expect(page.locator(".vx-predictions output")).to_have_text(texts)
    expect(page.locator(".vx-headline")).to_contain_text("Without 1 square: of the 3 things it knows, ")
    expect(page.locator(".vx-headline b")).to_have_text("abc"[order[0]])


def test_heads_are_ranked_by_what_is_lost_without_them(tiny_page: Page, tiny: SmallApp) -> None:
    page, example = tiny_page, tiny.analysis
    open_panel(page, "switches")
    page.locator(".vx-rank").click()
    settle(page)
    layer, number, fall = example.head_effects().strongest(1)[0]
    said = page.locator(".vx-switch-said")
    expect(said).to_contain_text(f"The probability of {example.predictions(1)[0].label} with one head off at a time")
    assert f"Most needed: layer {layer}, head {number} (−{100 * fall:.1f} points)" in said.inner_text()


# ---- the tour ----


def test_the_tour_shows_three_things_on_the_own_picture_and_leaves_no_trace(page: Page, example: Analysis) -> None:
    guide, place = page.locator(".vx-guide"), page.locator(".vx-guide-place")
    layout, layers = example.trace.layout, example.trace.layers
    choose_method(page, "legrad")
    before = state(page)
    open_menu(page, "more")
    page.locator(".vx-guide-open").click()
    best = example.predictions(1)[0].label
    texts = (f"{layout.patch_count} squares", f"all {layers} layers", f"for “{best}” are covered")
    for number, (method, text) in enumerate(zip(("attention", "attention", "legrad"), texts, strict=True)):
        expect(place).to_have_text(f"{number + 1} of 3")
        expect(guide).to_contain_text(text)
        assert state(page)["guide"] == number
        expect(page.locator(".vx-method")).to_have_value(method)
        # Nothing that it speaks of lies under its card.
        card, stage = box_of(guide), box_of(page.locator(".vx-stage").first)
        assert card["y"] + card["height"] <= stage["y"]
        if number == 2:
            # Without motion, half of the squares at once: those that are strongest.
            expect(page.locator(".vx-headline")).to_contain_text("Without 6 squares")
            order = example.legrad().values.flatten().argsort(descending=True)[:6].tolist()
            cells = {divmod(index, layout.grid_width) for index in order}
            assert set(map(tuple, first_view(page)["patches_off"])) == cells
        page.locator(".vx-guide-next").click()
    expect(guide).not_to_be_visible()
    assert state(page) == before
    expect(page.locator(".vx-more > summary")).to_be_focused()
    # A link of a longer tour opens its last step.
    open_link(page, "/?__theme=light&panel=guide&guide=5")
    expect(place).to_have_text("3 of 3")
    page.locator(".vx-guide h2").press("Escape")
    expect(guide).not_to_be_visible()
    assert state(page)["panel"] == "" and not first_view(page)["patches_off"]


@pytest.mark.parametrize("size", [(1024, 768), (1440, 900), (1920, 1080)], ids=str)
def test_the_film_stays_in_the_window_while_the_tour_runs(tiny_page: Page, size: tuple[int, int]) -> None:
    page = tiny_page
    page.set_viewport_size({"width": size[0], "height": size[1]})
    for step in range(3):
        open_link(page, f"/?__theme=light&example=chelsea.jpg&panel=guide&guide={step}")
        arguments = [page.locator(".vx-strip").element_handle(), size[1]]
        page.wait_for_function("([film, height]) => film.getBoundingClientRect().bottom <= height", arg=arguments)


def test_the_tour_moves_by_itself_until_it_is_touched(page: Page) -> None:
    page.emulate_media(reduced_motion="no-preference")
    open_link(page, "/?__theme=light&panel=guide&guide=1")
    for layer in ("1", "3"):
        expect(page.locator(".vx-frame[data-chosen=true] span")).to_have_text(layer)


# ---- about the model ----


def test_the_model_says_what_it_is(page: Page, bundled: Model) -> None:
    panel = open_panel(page, "model")
    text = " ".join(panel.locator("dl").inner_text().split())
    for name, value in bundled.card.items():
        assert " ".join(f"{name} {value}".split()) in text
    panel.locator("summary", has_text=f"All {len(bundled.labels)} classes").click()
    listed = panel.locator(".vx-all-classes p").inner_text().removesuffix(".").split(", ")
    assert sorted(listed) == sorted(bundled.labels) and listed == sorted(listed, key=str.lower)
    open_panel(page, "save")
    expect(panel.locator("dl")).not_to_be_visible()


def test_the_answer_says_of_how_many_things_and_lists_them(
    browser: Browser, page: Page, tiny: SmallApp, bundled: Model
) -> None:
    """Also where it is not sure, after something is hidden, of A and B, and for a model with few classes."""

    def expect_list(model: Model, number: int = 0) -> None:
        menu = page.locator(".vx-models")
        page.locator(".vx-list").nth(number).click()
        for label in (model.labels[0], model.labels[-1]):
            expect(menu.locator(":is(.vx-classes, .vx-all-classes p)", has_text=label).last).to_be_in_viewport()
        close_menus(page)
        expect(menu.locator(".vx-menu-body")).not_to_be_visible()

    headline, count = page.locator(".vx-headline"), len(bundled.labels)
    expect(headline).to_have_text(re.compile(rf"^Of the {count} things it knows: cat, \d+%\.$"))
    expect_list(bundled)
    choose_example(page, "astronaut.jpg")
    expect(headline).to_have_text(
        re.compile(rf"^Not sure. Closest of the {count} things it knows: \w+ \((\d+|\d\.\d)%\)\.$")
    )
    page.evaluate(f"{EXPLORER}.store.patchView(0, {{ patches_off: [[3, 5]] }})")
    expect(headline).to_have_text(re.compile(rf"^Without 1 square: of the {count} things it knows, perhaps \w.*\.$"))
    page.set_viewport_size({"width": 390, "height": 844})
    expect_list(bundled)
    with page_at(browser, tiny.address) as page:
        model = tiny.analysis.model
        count = len(model.labels)
        # By then, it may have covered squares.
        expect(page.locator(".vx-headline")).to_contain_text(f"the {count} thing{'s' * (count > 1)} it knows")
        expect_list(model)


# ---- a model that reads texts ----


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("clip")
    make_transformers(folder, "CLIP")
    return folder


@pytest.mark.long
def test_a_model_without_classes_is_asked_in_words(browser: Browser, clip: Path) -> None:
    analysis = vitviz.analyze(EXAMPLE, vitviz.load(clip))
    library = Library(analysis.model)
    with small_app(analysis.model) as app, opened_page(browser, app.address) as page:
        expect(page.locator(".vx-predictions-part")).not_to_be_visible()
        page.locator(".vx-method").select_option("relevance")
        expect(caption(page)).to_contain_text("write what")
        for text in ("a cat", "a rocket"):
            write(page, "words", text)
            check_page(page, library)
            assert first_view(page)["parameters"] == {"target": {"text": text}}
        # What is switched off is measured by the score of the words.
        target = analysis.model.text(text)
        open_panel(page, "switches")
        click_cell(page, analysis, 0, 0)
        cells = page.locator(".vx-changes tbody tr").locator("td").all_inner_texts()
        scores = [float(target.score(analysis.switched_off(heads))) for heads in ({}, {(0, 0)})]
        assert [float(cell) for cell in cells[:2]] == pytest.approx(scores, abs=0.006)
        click(page, ".vx-rank")
        layer, number, fall = analysis.head_effects(target).strongest(1)[0]
        said = page.locator(".vx-switch-said")
        expect(said).to_contain_text(f"The score of {target.name} with one head off")
        expect(said).to_contain_text(f"Most needed: layer {layer}, head {number} (−{digits(fall)})")


HOLD_SEARCHES = """() => {
    const { fetch } = window, held = [];
    window.fetch = (address, options) => (!String(options?.body).includes('"flip"') ? fetch(address, options)
        : new Promise((go) => {
            held.push(() => go(fetch(address, options)));
            window.letSearch = () => { window.fetch = fetch; for (const each of held) each(); };
        }));
}"""
IS_SEARCHING = "() => Boolean(window.letSearch)"


@pytest.mark.parametrize(("touch", "resolution"), [("", 96), ("tab", 104), ("key", 120)])
def test_the_coffee_opens_covered_unless_the_visitor_has_touched_it(
    page: Page, bundled: Model, touch: str, resolution: int
) -> None:
    """The search takes seconds, in which the page is the visitor's."""
    found = vitviz.analyze(EXAMPLE.with_name("coffee.jpg"), bundled, resolution=resolution).flip()
    page.evaluate(f"{EXPLORER}.store.patchView(0, {{ resolution: {resolution} }})")
    settle(page)
    page.evaluate(HOLD_SEARCHES)
    choose_example(page, "coffee.jpg")
    page.wait_for_function(IS_SEARCHING)
    if touch == "tab":
        page.locator(".vx-tab[data-question=target]").click()
    elif touch == "key":
        page.keyboard.press("s")
    page.evaluate("window.letSearch()")
    name = f"says {found.after.label.split(',')[0]}, {found.after.probability:.0%}"
    expect(page.locator(".vx-unless")).to_contain_text(name)
    settle(page)
    covered = [] if touch else [list(cell) for cell in found.patches]
    assert first_view(page)["patches_off"] == covered
    assert page.locator(".vx").get_attribute("data-question") == {"": "hide", "tab": "target", "key": "token"}[touch]
    if covered:
        expect(page.locator(".vx-headline")).to_contain_text(f"Without {len(covered)} square")


def test_a_layer_of_the_film_is_shown_large_also_from_unless(tiny_page: Page) -> None:
    page = tiny_page
    ask(page, "hide")
    page.evaluate(f"{EXPLORER}.store.patchView(0, {{ patches_off: [[1, 1]] }})")
    settle(page)
    page.locator(".vx-frame").nth(1).click()
    settle(page)
    assert page.locator(".vx").get_attribute("data-question") == "token"
    view = first_view(page)
    assert (view["method"], view["parameters"]["layer"], view["patches_off"]) == ("attention", 1, [[1, 1]])
    expect(page.locator(".vx-badge").first).to_have_text(re.compile("^whole picture · "))
