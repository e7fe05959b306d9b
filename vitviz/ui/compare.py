"""All maps of the model side by side on one scale, with what measures say of each."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.errors.kinds import VitvizError
from vitviz.evaluation.comparison import Compared, Comparison, compare
from vitviz.metrics.faithfulness import METRICS, RANDOM_ORDERS
from vitviz.models.targets import NO_CLASSIFIER, Target
from vitviz.progress import Progress
from vitviz.ui.controls import told_apart
from vitviz.ui.jobs import Jobs, Stopped
from vitviz.ui.panels import ControlPanel, Settings
from vitviz.ui.picture import as_webp
from vitviz.ui.server.estimates import comparison_bytes
from vitviz.ui.texts import html_text, markdown, ramp, said_plainly
from vitviz.ui.workbench import Workbench
from vitviz.visualization.heatmaps import Style
from vitviz.weights import Model
from vitviz.weights.text_tower import TextPrompt, reads_text

JOB = "compare"
CARD_SIDE = 320
LISTED = "listed"
# Gradio hands its own to a handler with this default.
PROGRESS = gr.Progress()
SHUFFLED = (
    "Rank correlation with the map of the same model with all of its weights shuffled (Adebayo et al. 2018). One that "
    "stays similar does not depend on what the model has learnt."
)
INTRODUCTION = (
    "Every map of this picture on one scale, and how faithful it is: patches are taken out in the map's order, and the "
    "probability of the class is watched, beside random orders of the same patches. Of a text it is the score, as a "
    "share: 0 for a blank picture, 1 for the whole one."
)
NO_CLASSES = f"{NO_CLASSIFIER[0].upper()}{NO_CLASSIFIER[1:]}"
NO_WORDS = (
    "This model has no classes, but reads texts: choose a map that is about something, such as "
    f"{METHODS['relevance'].title}, and write what in the box “In words”"
)


@dataclass(frozen=True)
class Cards:
    """A comparison as the page shows it.

    Args:
        about: one line on model and target, HTML.
        legend: of the common scale, HTML.
        comparison: the numbers.
        pictures: of every map, by method, as addresses that hold the picture itself.
    """

    about: str
    legend: str
    comparison: Comparison
    pictures: dict[str, str]


class ComparePanel:
    """The components of the comparison and their events."""

    def __init__(self, bench: Workbench, jobs: Jobs) -> None:
        self.bench, self.jobs = bench, jobs
        with gr.Accordion("Compare all maps", open=False, elem_id="vv-compare"):
            markdown(INTRODUCTION, elem_classes="vv-aside")
            with gr.Row():
                self.start = gr.Button("Compare", variant="primary", elem_id="vv-compare-start")
                self.stop = gr.Button("Stop", elem_id="vv-compare-stop")
                self.order = gr.Dropdown(
                    [("as listed", LISTED), *((f"best by {metric.title}", metric.name) for metric in METRICS.values())],
                    value=LISTED,
                    label="Order",
                    elem_id="vv-compare-order",
                )
            self.cards = gr.HTML("", elem_id="vv-cards")
            self.found = gr.State(None)

    def connect(self, panel: ControlPanel, told: list[Any]) -> None:
        """Connect the events; ``told`` are the key, the model, the picture and the controls."""
        private: dict[str, Any] = {"api_visibility": "private"}
        self.panel = panel
        self.start.click(
            self._compare,
            [self.order, *told],
            [self.found, self.cards],
            show_progress="full",
            show_progress_on=self.cards,
            concurrency_id=JOB,
            concurrency_limit=1,
            trigger_mode="once",
            **private,
        )
        self.stop.click(self._stop, None, None, queue=False, show_progress="hidden", **private)
        self.order.change(self._show, [self.found, self.order], self.cards, show_progress="hidden", **private)

    def cleared(self) -> tuple[Any, ...]:
        """What the panel shows of a picture, a model or a fit that nothing was compared for yet."""
        return None, ""

    @property
    def outputs(self) -> list[Any]:
        """What :meth:`cleared` clears."""
        return [self.found, self.cards]

    def _stop(self, request: gr.Request) -> None:
        self.jobs.stop(str(request.session_hash), JOB)

    def _compare(self, request: gr.Request, progress: Any = PROGRESS, *said: Any) -> tuple[Any, ...]:
        order, key, choice, upload, *values = said
        if upload is None:
            return None, said_plainly("There is no picture yet.")
        try:
            with self.jobs.running(str(request.session_hash), JOB) as check:
                settings = self.panel.read(values)
                _, analysis = self.bench.recall(key, choice, upload, settings.sight)
                refused = unasked(analysis.model, settings.target)
                if refused is not None:
                    return None, said_plainly(f"{refused}.")
                target = self.bench.target(analysis.model, settings.target)

                def report(state: Progress) -> None:
                    check()
                    progress((state.done, state.total), desc="Maps, and pictures without some of their patches")

                with self.bench.budget.share(comparison_bytes(analysis), "this comparison", check):
                    found = cards(analysis, settings, target, report)
        except Stopped:
            return gr.skip(), gr.skip()
        except VitvizError as error:
            return None, said_plainly(str(error))
        return found, as_html(found, order)

    def _show(self, found: Cards | None, order: str) -> Any:
        return gr.skip() if found is None else as_html(found, order)


def unasked(model: Model, wanted: Any) -> str | None:
    """Why nothing can be measured of what the controls are about, without a full stop; None where something can."""
    if model.labels or isinstance(wanted, TextPrompt):
        return None
    return NO_WORDS if reads_text(model) else NO_CLASSES


def target_name(model: Model, target: int | Target) -> str:
    """A target as the page calls it: a class so that it is told apart from others."""
    return target.name if isinstance(target, Target) else f"class {told_apart(model.labels, target)}"


def cards(analysis: Analysis, settings: Settings, target: int | Target | None, report: Any) -> Cards:
    """The comparison of all methods with the parameters that the page's controls say, about a target."""
    parameters = {
        name: {key: value for key, value in said.items() if key != "target"}
        for name, said in settings.parameters.items()
    }
    comparison = compare(analysis, parameters, target, report=report)
    style = replace(settings.style, low=0.0, high=comparison.highest, grid=False)
    small = [each.heatmap.resized(CARD_SIDE).overlay(style) for each in comparison.maps]
    pictures = {each.method: _address(picture) for each, picture in zip(comparison.maps, small, strict=True)}
    name = target_name(analysis.model, comparison.target)
    about = f"{html_text(analysis.model.name)}, <b>{html_text(name)}</b>"
    return Cards(about, _legend(style, comparison), comparison, pictures)


def as_html(found: Cards, order: str) -> str:
    """The cards in an order: :data:`LISTED`, or the best first by a metric, which the line above names."""
    metric = None if order == LISTED else order
    sorting = (
        "as listed" if metric is None else f"best first by {METRICS[metric].title}: {METRICS[metric].interpretation}"
    )
    shown = "".join(_card(found, each, metric) for each in found.comparison.by(metric))
    said = f"▲ better and ▼ worse than the mean of {RANDOM_ORDERS} random orders of the patches of this one picture"
    return (
        f'<p class="vv-aside">{found.about}. Order: {html_text(sorting)}</p>{found.legend}'
        f'<div class="vv-cards">{shown}</div><p class="vv-aside">{said}.</p>'
    )


def _card(found: Cards, compared: Compared, metric: str | None) -> str:
    method = METHODS[compared.method]
    row, column = compared.heatmap.token_map.strongest
    rows = "".join(_score(found.comparison, compared, name, name == metric) for name in compared.areas)
    rows += _remembered(compared.randomization_correlation)
    title, reading = html_text(method.title), html_text(method.interpretation)
    alt = f"{title}: strongest at patch ({row}, {column})"
    return (
        f'<figure class="vv-card" data-method="{compared.method}"><img src="{found.pictures[compared.method]}" '
        f'alt="{alt}"><figcaption><b>{title}</b><p>{reading}</p><table>{rows}</table></figcaption></figure>'
    )


def _score(comparison: Comparison, compared: Compared, metric: str, chosen: bool) -> str:
    said = METRICS[metric]
    mark = "▲" if comparison.beats_chance(compared, metric) else "▼"
    arrow, tag = "↓" if said.lower_is_better else "↑", "th" if chosen else "td"
    return (
        f'<tr title="{html_text(said.interpretation)} Random order: {comparison.chance[metric]:.3f}">'
        f"<{tag}>{html_text(said.title)} {arrow}</{tag}><{tag}>{compared.areas[metric]:.3f} {mark}</{tag}></tr>"
    )


def _remembered(correlation: float) -> str:
    """What is left of a map when the model has forgotten everything."""
    # Not −0.00.
    said = "no order" if math.isnan(correlation) else f"{round(correlation, 2) + 0.0:+.2f}".replace("-", "−")
    return f'<tr title="{html_text(SHUFFLED)}"><td>Weights shuffled</td><td>{said}</td></tr>'


def _legend(style: Style, comparison: Comparison) -> str:
    shares = f"share of the whole map that a patch holds, one scale for all (at most {comparison.highest:.1%})"
    return ramp(style.colormap, "0", f"{comparison.highest:.1%}", shares)


def _address(picture: Image.Image) -> str:
    return f"data:image/webp;base64,{base64.b64encode(as_webp(picture)).decode()}"
