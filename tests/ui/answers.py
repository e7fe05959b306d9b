"""What the library answers to what a page shows: every number and sentence of the page, computed without it."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from math import lcm
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image
from PIL.ImageFilter import BoxBlur
from playwright.sync_api import Page

import vitviz
from tests.driver import EXPLORER, settle
from tests.support.example import ROOT
from tests.ui.explorer.test_explorer_files import expected_map
from vitviz import METHODS, Analysis, Heatmap, Model, contrast, likeness, margin
from vitviz.attribution.parameters import ClassTarget, LayerNumber, Token
from vitviz.models.targets import TargetChoice
from vitviz.ui.first_view import far_look_worth_opening
from vitviz.ui.links import print_link, read_link
from vitviz.ui.normalize import bounds_of, normalize
from vitviz.ui.state import PageState, View
from vitviz.video.clips import read_frame
from vitviz.visualization.overlays import grid_lines
from vitviz.visualization.scales import FittedScale, fit
from vitviz.weights import BUNDLED

# The mean difference of a channel: the page gets its picture as a lossy WebP, and browsers scale it in their own way.
MAX_LEVELS = 5.0
# From the middle of a line of the grid to where nothing of it is left.
LINE_PX = 3
WHOLE = "The map is of the whole picture, with nothing hidden."
SENTENCE = re.compile(
    r"(?P<description>.*)\. (Strongest: (?P<token>.*) with (?P<value>\S*\d)|(?P<inside>\d+) of (?P<count>\d+) \w+)\.",
    re.DOTALL,
)
# All that a pane shows, at one moment.
SHOWN = f"""() => {{
    const {{ panes, store, latest }} = {EXPLORER}, root = document.querySelector("#vv-explorer .vx");
    const plain = (values) => values && Array.from(values, (value) => Number.isNaN(value) ? null : value);
    const text = (name, part = root) => part.querySelector(`.vx-${{name}}`).textContent;
    const value = (name) => root.querySelector(`.vx-${{name}}`).value;
    const all = (selector, read, part = root) => [...part.querySelectorAll(selector)].map(read);
    const chip = (part) => [part.querySelector("b")?.textContent, part.getAttribute("aria-pressed")];
    const control = (field) => [field.dataset.name, {{
        slider: field.querySelector("input[type=range]")?.value, radio: field.querySelector("input:checked")?.value,
        target: field.querySelector(".vx-target")?.value, words: field.querySelector(".vx-words")?.value,
        against: field.querySelector(".vx-against")?.value, patch: field.querySelector(".vx-like-patch")?.value,
        like: field.querySelector(".vx-like [aria-pressed=true]")?.dataset.like,
    }}];
    const isDouble = !root.querySelector(".vx-comparing").hidden, {{ checked }} = root.querySelector(".vx-difference");
    const layout = isDouble ? (checked ? "difference" : "two") : value("divider") < 1 ? "slide" : "one";
    const prediction = (button) => [
        Number(button.dataset.index), button.querySelector("output").textContent, button.getAttribute("aria-pressed"),
    ];
    const shown = (pane, index) => ({{
        values: plain(pane.values(store.state.views[index].parameters.query)),
        caption: text("status", pane.element), quantity: text("quantity", pane.element),
        low: text("low", pane.element), high: text("high", pane.element), scale: text("scale-name", pane.element),
        clipped: ["below", "above"].map((end) => !pane.find(end).hidden),
        chips: all(".vx-chip", chip, pane.element), picture: pane.find("canvas").toDataURL(),
    }});
    return {{
        state: store.state, link: latest.link, search: location.search + location.hash,
        panes: panes.filter(({{ element }}) => !element.hidden).map(shown),
        method: value("method"), layout, fit: value("fit"), resolution: value("resolution"),
        pixels: value("pixels"), colormap: value("colormap"), scale: value("scale"),
        automatic: root.querySelector(".vx-scale").options[0].text, model: text("model-name"), seen: text("seen-as"),
        parameters: Object.fromEntries(all(".vx-parameter", control)),
        predictions: all(".vx-predictions button", prediction),
        pins: all(".vx-pin span", (pin) => pin.textContent), busy: {EXPLORER}.requests.isBusy,
    }};
}}"""


class Library:
    """The answers for a page.

    Args:
        start: the model with which its app starts.
        models: others by the ids of the page's state; the bundled one is there by its name.
        pictures: files by the ids of the page's state; examples are there by theirs.
    """

    def __init__(
        self, start: Model, models: Mapping[str, Model] | None = None, pictures: Mapping[str, Path] | None = None
    ) -> None:
        self.models: dict[str, Model | Callable[[], Model]] = {"": start, BUNDLED[0]: vitviz.load, **(models or {})}
        self.pictures = dict(pictures or {})
        self._analyses: dict[str, Analysis] = {}
        self._heatmaps: dict[str, Heatmap] = {}

    def model(self, view: View) -> Model:
        found = self.models[view.model]
        if not isinstance(found, Model):
            found = self.models[view.model] = found()
        return found if view.step is None else vitviz.open_snapshot(found, view.step)

    def picture(self, view: View) -> Path:
        kind, _, name = view.picture.partition(":")
        return ROOT / "assets" / name if kind == "example" else self.pictures[view.picture]

    def analysis(self, view: View) -> Analysis:
        key = repr((view.model, view.step, view.picture, view.frame, view.fit, view.resolution))
        if key not in self._analyses:
            model, picture = self.model(view), self.picture(view)
            resolution = view.resolution
            if resolution == "native":
                config = model.network.config
                step = lcm(config.patch_height, config.patch_width)
                with Image.open(picture) as opened:
                    resolution = max(step, min(opened.size) // step * step)
            image = picture if view.frame is None else read_frame(picture, view.frame)
            self._analyses[key] = vitviz.analyze(image, model, view.fit, resolution=resolution)
        return self._analyses[key]

    def heatmap(self, view: View) -> Heatmap:
        key = repr(
            (view.model, view.step, view.picture, view.frame, view.fit, view.resolution, view.method, view.parameters)
        )
        if key not in self._heatmaps:
            given = dict(view.parameters)
            if isinstance(given.get("target"), Mapping):
                given["target"] = self.target(view, given["target"])
            self._heatmaps[key] = self.analysis(view).map(view.method, **given)
        return self._heatmaps[key]

    def target(self, view: View, target: Mapping[str, Any]) -> TargetChoice:
        """What a target of several parts is in the library."""
        if "text" in target:
            return self.model(view).text(target["text"])
        if "like" in target:
            return likeness(self.analysis(replace(view, picture=target["like"], frame=None)), target.get("patch"))
        if "patch" in target:
            return likeness(self.analysis(view), target["patch"], name="this picture")
        return margin(target.get("class")) if "margin" in target else contrast(target.get("class"), target["against"])


class Expected:
    """What one view must look like."""

    def __init__(self, library: Library, view: View) -> None:
        self.view, self.analysis, self.heatmap = view, library.analysis(view), library.heatmap(view)
        self.layout, self.model = self.analysis.trace.layout, self.analysis.model

    @cached_property
    def values(self) -> np.ndarray:
        """``"token"``, NaN where the map says nothing of a prefix token."""
        prefix = [self.heatmap.token_map.prefix.get(name, math.nan) for name in self.layout.prefix]
        return np.concatenate([prefix, self.heatmap.values.double().numpy().ravel()])

    @cached_property
    def allowed(self) -> np.ndarray | float:
        """How far each may be off."""
        query = self.view.parameters.get("query", self.layout.default_query)
        if self.view.method == "attention" and query != "patches":
            token = self.layout.index(query)
            asked = (self.parameter(name) for name in ("layer", "head"))
            return expected_map(self.analysis.trace, *asked, token, self.parameter("direction"))[1]
        return 1e-3 * float(np.nanmax(np.abs(self.values))) + 1e-9

    def parameter(self, name: str) -> Any:
        """A parameter of the map: what was chosen, or its default."""
        [record] = [each for each in METHODS[self.view.method].parameters if each.name == name]
        value = self.view.parameters.get(name)
        if value is None and isinstance(record.kind, LayerNumber):
            return record.default % self.model.network.config.depth
        return record.default if value is None else value

    @property
    def class_name(self) -> object:
        """What the map is about: a class by its name, another target, or None."""
        if not METHODS[self.view.method].class_specific:
            return None
        target = self.view.parameters.get("target")
        if target is None:
            target = int(self.analysis.logits.argmax())
        return self.model.labels[target] if isinstance(target, int) else str(target)

    @property
    def itself(self) -> int | None:
        """The index of a patch that is excluded from the colour range of the map that begins there."""
        query, begins = self.view.parameters.get("query"), METHODS[self.view.method].begins_with_identity
        return self.layout.index(query) if begins and isinstance(query, tuple) else None

    @cached_property
    def highest(self) -> float:
        return float(self.scaled(self.values).max())

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """What the colours of values "token" are fitted to."""
        patches = values[self.layout.prefix_count :]
        return patches if self.itself is None else np.delete(patches, self.itself - self.layout.prefix_count)

    def token_names(self) -> dict[str, int]:
        """Every token's index by its name in captions."""
        names = {"CLS" if name == "cls" else name: place for place, name in enumerate(self.layout.prefix)}
        rows, columns = self.layout.grid_height, self.layout.grid_width
        cells = ((row, column) for row in range(rows) for column in range(columns))
        return names | {f"patch {cell}": self.layout.index(cell) for cell in cells}

    # ---- what is compared ----

    def check_values(self, found: list[float | None]) -> np.ndarray:
        """The values of a page, which are those of the library."""
        values = np.array([math.nan if value is None else value for value in found])
        assert values.shape == self.values.shape
        assert (np.isnan(values) == np.isnan(self.values)).all()
        known = ~np.isnan(values)
        allowed = self.allowed if isinstance(self.allowed, float) else self.allowed[known]
        assert (np.abs(values - self.values)[known] <= allowed).all(), "the canvas shows other values"
        return values

    def check_caption(self, text: str, scale: FittedScale, values: np.ndarray) -> None:
        if self.view.heads_off or self.view.patches_off:
            assert text.endswith(f" {WHOLE}"), text
            text = text.removesuffix(f" {WHOLE}")
        about = scale.caption(self.scaled(values))
        assert text.endswith(f" {about}" if about else ""), (text, about)
        text = text.removesuffix(f" {about}")
        patches = self.values[self.layout.prefix_count :]
        if not patches.any():
            assert text == f"{self.heatmap.caption()}.", text
            return
        said = SENTENCE.fullmatch(text)
        assert said is not None, text
        description = self.heatmap.description
        assert said["description"].startswith(description), (said["description"], description)
        rest = said["description"].removeprefix(description)
        assert ("itself is excluded from the colour range" in rest) == (self.itself is not None), text
        assert rest == "" or self.itself is not None, text
        if said["inside"] is not None:
            assert set(patches) <= {0, 1}
            assert (int(said["inside"]), int(said["count"])) == (patches.sum(), patches.size)
            return
        strongest = self.highest
        assert close(number_of(said["value"]), strongest), (text, strongest)
        token = self.token_names()[said["token"]]
        assert token != self.itself and token >= self.layout.prefix_count
        assert close(self.values[token], strongest), (text, strongest)

    def check_legend(self, pane: Mapping[str, Any], scale: FittedScale, values: np.ndarray) -> None:
        span = scale.ends[1] - scale.ends[0]
        for text, expected in zip((pane["low"], pane["high"]), scale.ends, strict=True):
            assert abs(number_of(text) - expected) <= 0.006 * abs(expected) + 2e-3 * span + 1e-6, (pane, scale)
        # Of two maps, whether it is shared follows.
        assert pane["scale"].partition(",")[0] == scale.scale.title.lower(), (pane, scale)
        assert pane["clipped"] == [count > 0 for count in scale.beyond(self.scaled(values))], (pane, scale)

    def check_chips(self, chips: list[list[str | None]]) -> None:
        query, target = (self.view.parameters.get(name) for name in ("query", "target"))
        if query is None:
            query = "patches" if isinstance(target, Mapping) and "patch" in target else self.layout.default_query
        chosen = {"cls": "CLS", "patches": "mean patch", None: "pooling query"}.get(query, query)
        for name, pressed in chips:
            if name is not None and self.has_token:
                assert (pressed == "true") == (name == chosen), (chips, query)

    @property
    def has_token(self) -> bool:
        return any(isinstance(each.kind, Token) for each in METHODS[self.view.method].parameters)

    def edges(self, heatmap: Heatmap, patch: tuple[int, int]) -> list[int]:
        """Left, top, right and bottom of a patch, in pixels."""
        rectangle = heatmap.geometry.patch_rectangle(*patch, self.layout.grid_height, self.layout.grid_width)
        return [round(each) for each in rectangle]

    def check_picture(self, address: str, state: PageState, scale: FittedScale) -> None:
        with Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))) as opened:
            shown = opened.convert("RGB")
        style = replace(state.style, low=None, high=None, scale=scale)
        query = self.view.parameters.get("query")
        mark = query if isinstance(query, tuple) and self.has_token else None
        resized = self.heatmap.resized(max(shown.size))
        pictures = (shown, resized.overlay(style, mark).resize(shown.size), resized.image.resize(shown.size))
        found, expected, plain = (np.asarray(each, dtype=np.float32) for each in pictures)
        compared = np.ones(found.shape[:2], dtype=bool)
        if self.itself is not None and isinstance(query, tuple):
            # The page leaves this patch clear, as far as its neighbours do not reach into it; the library colours it.
            left, top, right, bottom = self.edges(resized, query)
            across, down = right - left, bottom - top
            is_sharp = not state.smooth and not state.grid
            # In a grid of 3 × 3, a whole patch around the middle one would leave nothing.
            high, wide = (down // 4, across // 4) if is_sharp else (down, across)
            compared[max(top - high, 0) : bottom + high, max(left - wide, 0) : right + wide] = False
            if is_sharp:
                middle = np.s_[top + down // 4 : bottom - down // 4, left + across // 4 : right - across // 4]
                assert float(np.abs(found - plain)[middle].mean()) < MAX_LEVELS, "the patch itself is not clear"
        difference, lines = np.abs(found - expected), np.zeros_like(compared)
        for (left, top), (_, bottom) in grid_lines(resized) if state.grid else ():
            place = top if top == bottom else left
            near = slice(max(round(place) - LINE_PX, 0), round(place) + LINE_PX)
            lines[(near, slice(None)) if top == bottom else (slice(None), near)] = True
        assert float(difference[compared & ~lines].mean()) < MAX_LEVELS, "the canvas shows another picture"
        # The frame of the asking patch lies on lines, too; each draws its own.
        if mark is not None:
            left, top, right, bottom = self.edges(resized, mark)
            compared[max(top - LINE_PX, 0) : bottom + LINE_PX, max(left - LINE_PX, 0) : right + LINE_PX] = False
        # Canvas and library smooth the edges of a line in their own ways: its light, spread around it, is one.
        spread = (np.asarray(each.filter(BoxBlur(LINE_PX)), dtype=np.float32) for each in pictures[:2])
        on_lines = np.abs(np.subtract(*spread))[compared & lines]
        assert not on_lines.size or float(on_lines.mean()) < MAX_LEVELS, (
            f"another grid, by {on_lines.mean():.1f} levels"
        )

    def check_controls(self, shown: Mapping[str, Any]) -> None:
        assert shown["method"] == self.view.method
        own = self.model.preprocessing
        assert shown["fit"] == (self.view.fit or own.fit)
        resolution = self.view.resolution
        assert shown["resolution"] in ("", "null" if resolution is None else str(resolution))
        if isinstance(resolution, int):
            assert int(shown["pixels"]) == resolution
        assert f"{self.layout.grid_height}×{self.layout.grid_width} patches" in shown["seen"]
        geometry, trained = self.analysis.prepared.geometry, min(own.height, own.width)
        is_trained = min(geometry.input_height, geometry.input_width) == trained
        assert (f"(trained at {trained})" in shown["seen"]) != is_trained
        records = [each for each in METHODS[self.view.method].parameters if each.facts().get("on_page", True)]
        assert set(shown["parameters"]) == {each.name for each in records}
        for record in records:
            control, value = shown["parameters"][record.name], self.parameter(record.name)
            if isinstance(record.kind, ClassTarget):
                self.check_target(control, value if isinstance(value, Mapping) else {"class": value})
            elif control["slider"] is not None:
                assert float(control["slider"]) == float(value), (record.name, control, value)
            elif control["radio"] is not None:
                assert json.loads(control["radio"]) == value, (record.name, control, value)

    def check_target(self, control: Mapping[str, Any], target: Mapping[str, Any]) -> None:
        def label(index: int | None) -> tuple[str, ...]:
            return ("",) if index is None else (self.model.labels[index], f"{self.model.labels[index]} ({index})")

        assert control["words"] in (None, target.get("text", "")), control
        assert control["target"] in (None, *label(target.get("class"))), control
        best = ("the best of the others",) if "margin" in target else label(target.get("against"))
        assert control["against"] in (None, *best), control
        assert control["patch"] == ", ".join(map(str, target.get("patch", ()))), control
        assert control["like"] == target.get("like"), control

    def check_predictions(self, shown: list[list[Any]]) -> None:
        if not self.model.labels:
            assert shown == []
            return
        heads, patches = self.view.heads_off, self.view.patches_off
        before = now = self.analysis.logits.softmax(-1)
        if heads or patches:
            now = self.analysis.switched_off(heads, patches).softmax(-1)
        best = now.topk(min(5, len(now))).indices.tolist()
        assert [index for index, _, _ in shown] == best, (shown, best)
        target = self.view.parameters.get("target")
        for index, text, pressed in shown:
            expected = [float(now[index])] if now is before else [float(before[index]), float(now[index])]
            for part, probability in zip(text.split(" → "), expected, strict=True):
                assert abs(number_of(part.rstrip("%")) - 100 * probability) <= max(0.06, 6 * probability), (
                    text,
                    expected,
                )
            assert (pressed == "true") == (target == index), (shown, target)


def check_page(page: Page, library: Library) -> None:
    """Canvas, caption, controls, predictions and address of a page agree with the library, without a pointer there."""
    page.mouse.move(1, 1)
    settle(page)
    shown = page.evaluate(SHOWN)
    state = PageState.from_json(shown["state"])
    assert not shown["busy"] and shown["layout"] == state.layout and shown["colormap"] == state.colormap
    panes = state.views[: len(shown["panes"])]
    assert len(panes) == (2 if state.layout in ("two", "difference") else 1)
    all_expected = [Expected(library, view) for view in panes]
    first = all_expected[0]
    quantities = {each.heatmap.token_map.quantity for each in all_expected}
    classes = {each.class_name for each in all_expected}
    is_own = state.own_scales if state.own_scales is not None else len(classes) == 2
    shared = len(panes) == 2 and not is_own and len(quantities) == 1
    pairs = list(zip(all_expected, shown["panes"], strict=True))
    values = [expected.check_values(pane["values"]) for expected, pane in pairs]
    scaled = [expected.scaled(found) for expected, found in zip(all_expected, values, strict=True)]
    # Of the page's own values: rounded to eleven bits, they may lie on the other side of a border.
    name = state.scale
    look = far_look_worth_opening(first.analysis) if len(panes) == 1 and name is None else None
    asked = {} if look is None else {"layer": look.layer, "head": look.head, "query": look.query}
    if look is not None and panes[0].method == "attention" and panes[0].parameters == asked:
        name = "linear"
    fitted = [fit(name, scaled if shared else [each], percentiles=state.percentiles) for each in scaled]
    for place, (expected, pane) in enumerate(pairs):
        expected.check_caption(pane["caption"], fitted[place], values[place])
        expected.check_legend(pane, fitted[place], values[place])
        assert pane["quantity"] == expected.heatmap.token_map.quantity, pane
        expected.check_chips(pane["chips"])
        if state.layout != "slide" and not expected.view.pins and not expected.view.patches_off:
            expected.check_picture(pane["picture"], state, fitted[place])
    check_scale(shown, state, fitted[0])
    if len(panes) == 1:
        first.check_controls(shown)
        first.check_predictions(shown["predictions"])
    check_address(shown, state, all_expected)


def check_scale(shown: Mapping[str, Any], state: PageState, first: FittedScale) -> None:
    """The control of the scale says which one is chosen and, of one map, which one that is."""
    assert shown["scale"] == (state.scale or "")
    if state.scale is None and len(shown["panes"]) == 1:
        assert shown["automatic"] == f"Automatic ({first.scale.title.lower()})"


def check_address(shown: Mapping[str, Any], state: PageState, expected: list[Expected]) -> None:
    """The address is the link of the state, and opens it again."""
    own = {each.view.model: each.model.name for each in expected if each.view.model.startswith("own:")}
    if not own:
        seen = [each.analysis for each in expected]
        assert shown["link"] == print_link(state, {}, bounds=[bounds_of(each) for each in seen])
        read = read_link(shown["link"])
        assert (normalize(read.state, seen)[0], read.notes) == (state, ())
    words = [word for word in urlsplit(shown["search"]).query.split("&") if word and not word.startswith("__")]
    assert "?" * bool(words) + "&".join(words) == shown["link"]


def number_of(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def close(found: float, expected: float) -> bool:
    """Equal as far as three digits and half precision say."""
    return abs(found - expected) <= 0.01 * abs(expected) + 1e-6
