"""The site of docs/: navigation, explorers, tables and figures. `make docs` builds it; these tests build nothing."""

from __future__ import annotations

import inspect
import lzma
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import vitviz
from docs.site import stages
from docs.site.blocks import EXPLORER, Block, explorers
from docs.site.check import problems
from docs.site.gallery import index, pieces
from docs.site.tables import TABLES, with_table
from tests.support.example import ROOT
from vitviz import Analysis
from vitviz.cli.parsing import parse
from vitviz.ui.explorer.saved_state import opening
from vitviz.ui.links import (
    PAGE_FIELDS,
    PARAMETER,
    PROBE_PARAMETER,
    SECOND,
    TARGET_KEYS,
    VIEW_FIELDS,
    print_link,
    read_link,
)
from vitviz.ui.normalize import normalize
from vitviz.ui.state import LAYOUTS, PANELS

DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.glob("**/*.md"))}
BLOCKS = [(page, block) for page, text in PAGES.items() for block in explorers(text)]


# Explorers.


def test_no_command_of_an_explorer_is_overlooked() -> None:
    for page, text in PAGES.items():
        assert len(EXPLORER.findall(text)) == text.count("<!-- explorer:"), page
    names = [block.name for _, block in BLOCKS]
    assert len(names) == len(set(names)) >= 13


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[block.name for _, block in BLOCKS])
def test_every_explorer_opens_with_what_its_command_says(page: str, block: Block, example: Analysis) -> None:
    _, options = parse(block.arguments)
    assert (ROOT / options["image"]).is_file()
    # Picture and fit may differ; layers, heads and classes are the same.
    state, _ = opening(example, options["link"], None, None)
    assert len(state.views) == (2 if "layout=two" in options["link"] else 1), page


def test_a_command_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"-o NAME\.html"):
        explorers("<!-- explorer: a cat -->\n\n    vitviz explore cat.jpg\n")


def test_the_gallery_has_thirteen_with_a_sentence_each() -> None:
    found = pieces(PAGES["gallery.md"])
    assert len(found) == 13
    for title, sentence, block in found:
        assert title and sentence.endswith(".") and block.name.startswith("gallery-")
    page = index(found)
    assert all(f'href="{block.name}" target="explorer"' in page for _, _, block in found)
    assert "<script" not in page and "://" not in page


@pytest.mark.long
@pytest.mark.slow
def test_stages_of_training_open_with_a_slider(tmp_path: Path) -> None:
    stages.write(tmp_path)
    model = vitviz.load(str(tmp_path))
    assert model.snapshots is not None and model.snapshots.steps == (0, 1200, 5088)
    cat = []
    for step in model.snapshots.steps:
        analysis = vitviz.analyze(str(ROOT / "assets" / "chelsea.jpg"), vitviz.open_snapshot(model, step))
        cat.append({each.label: each.probability for each in analysis.predictions(len(model.labels))}["cat"])
    assert cat == sorted(cat)
    shipped = vitviz.load().network.state_dict()
    assert all(torch.equal(tensor, shipped[name]) for name, tensor in model.network.state_dict().items())
    assert stages.DIFFERENCES.stat().st_size < 6e6


@pytest.mark.long
@pytest.mark.slow
def test_states_come_back_from_their_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "DIFFERENCES", tmp_path / "stages.xz")
    monkeypatch.setattr(stages, "FILTERS", [{"id": lzma.FILTER_LZMA2, "preset": 0}])
    random = torch.Generator().manual_seed(0)
    shipped = vitviz.load().network.state_dict()
    states = {}
    for epoch in (1, 3):
        noise = {name: torch.randn(tensor.shape, generator=random) * tensor.std() for name, tensor in shipped.items()}
        states[epoch] = {name: tensor + noise[name] for name, tensor in shipped.items()}
        state = {"epoch": epoch, "config": {"images_per_epoch": 2560}, "averaged": states[epoch]}
        torch.save(state, tmp_path / f"{epoch}.pt")
    stages.pack([tmp_path / "1.pt", tmp_path / "3.pt"])
    found = stages.stages()
    assert list(found) == [10, 30, stages.ALL_STEPS]
    for epoch, expected in states.items():
        for name, tensor in found[10 * epoch].network.state_dict().items():
            error = (tensor - expected[name]).abs().amax() / shipped[name].std()
            assert error < (stages.UNIT if tensor.ndim > 1 else 0.1), (epoch, name)


# The reference of Python.


def test_no_property_says_a_colon_in_its_first_line() -> None:
    """Sphinx takes the text before a colon for the type of the property."""
    count = 0
    for name in vitviz.__all__:
        for member in vars(getattr(vitviz, name)).values() if inspect.isclass(getattr(vitviz, name)) else ():
            getter = getattr(member, "fget", None) or getattr(member, "func", None)
            if getter is not None:
                count += 1
                assert ": " not in (inspect.getdoc(getter) or "").split("\n")[0], getter
    assert count > 20


# Tables and figures.


@pytest.mark.parametrize(("page", "name", "make"), TABLES, ids=[name for _, name, _ in TABLES])
def test_tables_that_the_code_makes_are_as_it_makes_them(page: str, name: str, make: Callable[[], str]) -> None:
    assert with_table(PAGES[page], name, make()) == PAGES[page], "run python -m docs.site.tables"


def test_the_page_of_links_has_every_word() -> None:
    text = PAGES["app.md"].partition("## The link of a view")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \|(.+?)\|", text, re.MULTILINE)
    words = {word for cell, _ in rows for word in re.findall(r"`([^`]+)`", cell)}
    expected = {*PAGE_FIELDS, *TARGET_KEYS.values(), f"{PARAMETER}NAME", f"{PROBE_PARAMETER}NAME", f"{SECOND}…"}
    expected |= {*VIEW_FIELDS, "own", "example", "p.target"}
    assert words == expected
    values = {cell.strip("`"): set(re.findall(r"`([^`]+)`", value)) for cell, value in rows}
    assert values["layout"] == set(LAYOUTS) and values["panel"] == set(PANELS) - {""}


COMMAND = re.compile(r"(?:^ {4}|`)(?:\.venv/bin/)?(?:python -m|vitviz|make) ", re.MULTILINE)


@pytest.mark.parametrize("page", [*PAGES, "../README.md", "../checkpoints/README.md"])
def test_every_figure_has_the_command_that_makes_it_below(page: str) -> None:
    text = (DOCS / page).read_text()
    for match in re.finditer(r"^!\[", text, re.MULTILINE):
        below = re.split(r"^#+ |^!\[", text[match.end() :], flags=re.MULTILINE)[0]
        assert COMMAND.search(below), (page, text[match.start() : match.start() + 80])


def test_the_check_finds_what_leads_nowhere_and_what_is_fetched(tmp_path: Path) -> None:
    good = '<p id="here"><a href="#here">a</a><a href="b.html#there">b</a><a href="https://example.org">c</a>'
    (tmp_path / "a.html").write_text(good)
    (tmp_path / "b.html").write_text('<h2 id="there"><img src="data:image/png;base64,AA">')
    (tmp_path / "good.css").write_text("a { background: url(data:image/png;base64,AA) }")
    assert problems(tmp_path) == []
    (tmp_path / "a.html").write_text('<a href="#gone">x</a><a href="c.html">x</a><a href="b.html#gone">x</a>')
    (tmp_path / "b.html").write_text('<script src="https://example.org/a.js"></script><img src="gone.png">')
    (tmp_path / "good.css").write_text("@import 'https://example.org/font.css';")
    assert problems(tmp_path) == [
        "a.html: #gone has no such anchor",
        "a.html: c.html leads nowhere",
        "a.html: b.html#gone has no such anchor",
        "b.html: fetches https://example.org/a.js",
        "b.html: gone.png leads nowhere",
        "good.css: fetches https://example.org/font.css",
    ]


# Links.


def test_every_example_link_of_a_space_shows_what_it_says(example: Analysis) -> None:
    table = PAGES["app.md"].partition("<!-- example links -->")[2].partition("<!-- /example links -->")[0]
    links = re.findall(r"`(\?[^`]+)`", table)
    assert len(links) >= 12
    for link in links:
        read = read_link(link)
        state, changes = normalize(read.state, [example] * len(read.state.views))
        assert (read.notes, changes) == ((), []), link
        # No part of the link was ignored.
        printed = print_link(state, {})
        again, _ = normalize(read_link(printed).state, [example] * len(state.views))
        assert again == state and len(printed.split("&")) >= link.count("&"), link
    panels = {read_link(link).state.panel for link in links}
    assert {"compare", "switches", "probes", "guide"} <= panels
