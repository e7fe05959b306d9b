"""Notebooks: what vitviz shows in a cell, without a server, and the notebooks of the documents."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import nbformat
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image
from playwright.sync_api import Browser, Frame, Page, expect
from traitlets import HasTraits
from traitlets.config import Config

import vitviz
from tests.driver import new_context
from tests.support.example import EXAMPLE, ROOT
from tests.ui.explorer.page_driver import EXPLORER, made
from vitviz import Analysis, Model
from vitviz.errors.kinds import ConfigError, ImageError, MethodError
from vitviz.ui.explorer.inline import InlineExplorer, explore
from vitviz.ui.explorer.selection import LISTENER
from vitviz.ui.first_view import opening_view

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def small() -> Model:
    return made(24, 40, 4, 4)


@pytest.fixture(scope="module")
def analysis(small: Model) -> Analysis:
    return vitviz.analyze(EXAMPLE, small)


@contextmanager
def notebook_page(browser: Browser, cells: list[str]) -> Iterator[Page]:
    """Outputs of cells below one another, as a notebook shows them; fails on an error, and on any request."""
    context = new_context(browser, bypass_csp=True, viewport={"width": 1000, "height": 2200})
    page, wrong = context.new_page(), list[str]()
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda sent: None if sent.url.startswith(("data:", "blob:")) else wrong.append(sent.url))
    page.set_content("".join(f"<div class=output>{cell}</div>" for cell in cells))
    yield page
    page.context.close()
    assert wrong == []


def shown(frame: Frame) -> np.ndarray:
    """The values of the map on the canvas, of every token."""
    expect(frame.locator(".vx-canvas[data-loaded]").first).to_be_attached()
    values = f"{EXPLORER}.map({EXPLORER}.store.state.views[0].parameters.query)"
    frame.wait_for_function(f"{values}.length > 0")
    return np.array(frame.evaluate(values), dtype=float)


def test_where_frames_are_not_shown_a_picture_of_all_layers_and_heads_is(analysis: Analysis) -> None:
    still = Image.open(io.BytesIO(explore(analysis)._repr_jpeg_()))
    assert (still.format, still.size) == ("JPEG", analysis.attention_sheet().picture().size)


def test_two_explorers_in_one_notebook_do_not_disturb_each_other(
    browser: Browser, small: Model, analysis: Analysis
) -> None:
    other = explore(EXAMPLE, small, "squash", resolution=48, height=600)
    with notebook_page(browser, [explore(analysis)._repr_html_(), other._repr_html_()]) as page:
        [first, second] = page.frames[1:]
        layout = analysis.trace.layout
        assert f"head {opening_view(analysis).parameters['head']}." in first.locator(".vx-status").first.inner_text()
        first.evaluate(f"{EXPLORER}.store.patchView(0, {{ parameters: {{}} }})")
        expect(first.locator(".vx-status").first).to_contain_text("Attention from the CLS token")
        attention = analysis.attention().values.flatten().numpy()
        assert shown(first)[layout.prefix_count :] == pytest.approx(attention, rel=2e-3, abs=1e-6)
        assert shown(second).size == vitviz.analyze(EXAMPLE, small, "squash", resolution=48).trace.layout.token_count
        before = second.locator(".vx-status").first.inner_text()
        first.select_option(".vx-method", "rollout")
        expect(first.locator(".vx-status").first).to_contain_text("Attention rollout for the CLS token")
        assert shown(first)[layout.prefix_count :] == pytest.approx(
            analysis.rollout().values.flatten().numpy(), rel=2e-3, abs=1e-6
        )
        assert second.locator(".vx-status").first.inner_text() == before
        # Nothing of the notebook can be reached from a frame.
        assert first.evaluate("(() => { try { return parent.document.title; } catch { return null; } })()") is None
        assert [page.locator("iframe").nth(index).bounding_box()["height"] for index in (0, 1)] == [760, 600]  # type: ignore[index]


def test_an_analysis_shows_a_map_its_predictions_and_how_to_see_the_rest_to_the_letter(
    browser: Browser, example: Analysis, small: Model
) -> None:
    labels = ("<img src=x onerror=document.title=1>", "b", "c")
    strange = vitviz.analyze(EXAMPLE, Model("<b>bold</b>", small.network, small.preprocessing, labels))
    cells = [example._repr_html_(), strange._repr_html_(), explore(strange)._repr_html_()]
    with notebook_page(browser, cells) as page:
        text = page.locator(".output").first.inner_text()
        assert example.rollout().caption() in text and "vitviz.explore(analysis)" in text
        for each in example.predictions(5):
            assert each.label in text and f"{each.probability:.1%}" in text
        sizes = page.evaluate("Promise.all([...document.images].map((each) => each.decode().then(() => each.width)))")
        assert sizes == [420, 420]
        shown(page.frames[1])
        assert page.locator(".output b b, .output img[src=x]").count() == 0
        assert "<b>bold</b>" in page.locator(".output").nth(1).inner_text()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((EXAMPLE,), {"height": 10}, "height = 10: expected a whole number of at least 200"),
        ((made(24, 40, 4, 4), EXAMPLE), {}, "expected the image first: explore(image, model)"),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(vitviz.VitvizError) as error:
        explore(*arguments, **options)
    assert message in str(error.value)


def test_an_analysis_has_its_model_and_picture(analysis: Analysis, small: Model, tmp_path: Path) -> None:
    for beside in ({"model": small}, {"fit": "crop"}, {"resolution": 48}):
        with pytest.raises(MethodError, match="expected no model, fit or resolution"):
            explore(analysis, **beside)
    made_page = vitviz.explore(analysis)
    assert isinstance(made_page, InlineExplorer) and len(repr(made_page)) < 200
    made_page.save(tmp_path / "small.html")
    assert (tmp_path / "small.html").read_text(encoding="utf-8") == made_page.page
    with pytest.raises(ImageError, match="cannot be written"):
        made_page.save(tmp_path / "absent" / "small.html")
    with pytest.raises(ImageError, match="expected the path of a page"):
        made_page.save(3)  # type: ignore[arg-type]


HEAR = """async ([source, frame]) => {
    const { default: widget } = await import(`data:text/javascript,${encodeURIComponent(source)}`);
    widget.initialize({ model: { get: () => frame, set: (_, view) => hear(view), save_changes() {} } });
}"""


def test_what_is_chosen_in_a_notebook_comes_back_to_python(browser: Browser, analysis: Analysis) -> None:
    widget, other = SimpleNamespace(frame="vitviz-mine", view={}), SimpleNamespace(frame="vitviz-other", view={})
    explorer = replace(explore(analysis), listener=widget)
    assert explorer.selection is None
    with notebook_page(browser, [explorer._repr_html_(), replace(explorer, listener=other)._repr_html_()]) as page:
        page.expose_function("hear", lambda view: widget.view.update(view))
        page.evaluate(HEAR, [LISTENER, widget.frame])
        first, second = page.frames[1:]
        shown(second)
        second.select_option(".vx-method", "attention")
        shown(first)
        first.select_option(".vx-method", "attention")
        first.evaluate(f"{EXPLORER}.store.ask([{{ layer: 1, head: 'max', query: [2, 3] }}])")
        values, found = shown(first), explorer.selection
    assert found is not None and (found.method, found.layer, found.head, found.token) == ("attention", 1, "max", (2, 3))
    layout, expected = analysis.trace.layout, analysis.attention(layer=1, head="max", query=(2, 3))
    assert np.array_equal(found.heatmap.values, expected.values)
    assert values[layout.prefix_count :] == pytest.approx(expected.values.flatten().numpy(), rel=2e-3, abs=1e-6)
    assert other.view == {}


def test_a_selection_needs_a_package_which_makes_its_widget(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitviz.ui.explorer.selection.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs anywidget: pip install 'anywidget>=0.9'"):
        _ = explore(analysis).selection
    monkeypatch.setattr("vitviz.ui.explorer.selection.find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "anywidget", SimpleNamespace(AnyWidget=HasTraits))  # type: ignore[arg-type]
    explorer = explore(analysis)
    assert set(explorer.listener.traits(sync=True)) == {"frame", "view"} and explorer.listener._esm == LISTENER
    assert f'name="{explorer.listener.frame}"' in explorer._repr_html_() and explorer.selection is None


class Shown(NamedTuple):
    """What the cells of a notebook show and say."""

    html: list[str]
    pictures: list[bytes]
    errors: list[str]


def run_cell(shell: InteractiveShell, source: str, found: Shown) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        done = shell.run_cell(source)
        done.raise_error()
    if done.result is not None:
        data, _ = shell.display_formatter.format(done.result)
        found.html.extend([data["text/html"]] if "text/html" in data else [])
        found.pictures.extend([data["image/png"]] if "image/png" in data else [])
    found.errors.extend([errors.getvalue()] if errors.getvalue() else [])


@pytest.fixture(
    scope="module", params=[NOTEBOOKS[-1:], pytest.param(NOTEBOOKS, marks=pytest.mark.long)], ids=["the last", "all"]
)
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Shown]:
    """What the cells show in this process, which has imported all that they need."""
    importlib.import_module("tests.torchvision_names")
    root, found = tmp_path_factory.mktemp("notebooks"), list[Shown]()
    (root / "docs" / "notebooks").mkdir(parents=True)
    (root / "assets").symlink_to(ROOT / "assets")
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}), ipython_dir=str(root / "ipython"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(root / "docs" / "notebooks")
            for path in request.param:
                cells = [each for each in nbformat.read(path, 4).cells if each.cell_type == "code"]  # type: ignore[no-untyped-call]
                assert all(not each.outputs for each in cells), "notebooks are kept without outputs"
                found.append(Shown([], [], []))
                for cell in cells:
                    run_cell(shell, cell.source, found[-1])
                shell.reset(new_session=False)
    finally:
        shell.restore_sys_module_state()
    return found


def test_the_notebooks_of_the_documents_run_and_show_what_they_say(browser: Browser, executed: list[Shown]) -> None:
    for html, pictures, errors in executed:
        assert errors == []
        assert html and all(picture.startswith(b"\x89PNG") for picture in pictures)
        with notebook_page(browser, html) as page:
            frames = page.frames[1:]
            assert len(frames) == sum("<iframe" in cell for cell in html) > 0
            for frame in frames:
                assert np.isfinite(shown(frame)[-1])
