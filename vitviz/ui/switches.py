"""Cause and not only correlation: heads and patches switched off by a click, and what becomes of the output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
import torch

from vitviz.analysis.analysis import Analysis
from vitviz.errors.kinds import VitvizError
from vitviz.metrics.ablation import HeadEffects
from vitviz.models.targets import Target
from vitviz.progress import Progress
from vitviz.ui.compare import NO_CLASSES, target_name, unasked
from vitviz.ui.controls import told_apart
from vitviz.ui.jobs import Jobs, Stopped
from vitviz.ui.panels import ControlPanel
from vitviz.ui.picture import PictureOutput
from vitviz.ui.server.estimates import forward_bytes
from vitviz.ui.texts import html_text, markdown, said_plainly
from vitviz.ui.workbench import Workbench
from vitviz.visualization.figures import SheetLayout, patches_picture, switches_sheet

JOB = "heads"
SHOWN = 5
# Gradio hands its own to a handler with this default.
PROGRESS = gr.Progress()
INTRODUCTION = (
    "Click a patch, a head or the number of a layer to switch it off, and again to switch it on. The attention weights "
    "of a head that is off are zero; a patch that is off is attended to by nobody. What falls without it depended on "
    "it, whatever the maps say."
)
LOGIT = "The score of a text is its logit: the cosine between picture and text, scaled as the checkpoint says."


@dataclass(frozen=True)
class Scores:
    """How scores are written.

    Args:
        noun: what they are called.
        level: one of them.
        change: the difference of two, without its sign.
        unit: behind a change, in words.
    """

    noun: str
    level: Callable[[float], str]
    change: Callable[[float], str]
    unit: str

    def signed(self, change: float) -> str:
        """A change with its sign; empty where nothing of it would be seen."""
        amount = self.change(abs(change))
        return f"{'+' if change > 0 else '−'}{amount}" if float(amount) else ""


PROBABILITIES = Scores("probability", "{:.1%}".format, lambda change: f"{100 * change:.1f}", " points")
LOGITS = Scores("score", "{:.2f}".format, "{:.2f}".format, "")


@dataclass(frozen=True)
class Switches:
    """What is off, and what is known of the heads.

    Args:
        heads: layer and head, counted from 0.
        patches: row and column, counted from 0.
        effects: of every head alone, where they were ranked.
        ranked: what for: the target, as the page calls it.
        sheet: where the cells of the picture of heads lie.
    """

    heads: frozenset[tuple[int, int]] = frozenset()
    patches: frozenset[tuple[int, int]] = frozenset()
    effects: HeadEffects | None = None
    ranked: str = ""
    sheet: SheetLayout | None = None


class SwitchPanel:
    """The components of the switches and their events."""

    def __init__(self, bench: Workbench, jobs: Jobs, analysis: Analysis) -> None:
        self.bench, self.jobs = bench, jobs
        switches, patches, heads, said = self._shown(analysis, Switches(), None)
        with gr.Accordion("Switch parts off", open=False, elem_id="vv-switches"):
            markdown(INTRODUCTION, elem_classes="vv-aside")
            with gr.Row():
                with gr.Column(min_width=290):
                    self.patches = self._picture(patches, "Patches", "webp", "vv-switch-patches")
                with gr.Column(min_width=290):
                    self.heads = self._picture(heads, "Heads", "png", "vv-switch-heads")
                    with gr.Row():
                        self.rank = gr.Button("Rank the heads", variant="primary", elem_id="vv-switch-rank")
                        self.stop = gr.Button("Stop", elem_id="vv-switch-stop")
                with gr.Column(min_width=290):
                    self.said = gr.HTML(said, elem_id="vv-switch-said")
                    self.all_on = gr.Button("Switch everything on", elem_id="vv-switch-on")
            self.switches = gr.State(switches)

    @staticmethod
    def _picture(value: Any, label: str, form: str, name: str) -> PictureOutput:
        return PictureOutput(
            value,
            label=label,
            alt_text=f"{label}, of which those that are off are crossed out",
            format=form,
            interactive=False,
            buttons=["download"],
            elem_id=name,
            elem_classes="vv-switch",
        )

    @property
    def outputs(self) -> list[Any]:
        """What :meth:`cleared` and every event changes."""
        return [self.switches, self.patches, self.heads, self.said]

    def connect(self, panel: ControlPanel, told: list[Any]) -> None:
        """Connect the events; ``told`` are the key, the model, the picture and the controls."""
        self.panel = panel
        quick: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": 4, "api_visibility": "private"}
        inputs = [self.switches, *told]
        self.patches.select(self._toggle_patch, inputs, self.outputs, **quick)
        self.heads.select(self._toggle_heads, inputs, self.outputs, **quick)
        self.all_on.click(self._all_on, inputs, self.outputs, **quick)
        panel.words.submit(self._with, inputs, self.outputs, **quick)
        self.rank.click(
            self._rank,
            inputs,
            self.outputs,
            show_progress="full",
            show_progress_on=self.heads,
            concurrency_id=JOB,
            concurrency_limit=1,
            trigger_mode="once",
            api_visibility="private",
        )
        self.stop.click(self._stop, None, None, queue=False, show_progress="hidden", api_visibility="private")

    def cleared(self, key: str, choice: Any, upload: Any, *values: Any) -> tuple[Any, ...]:
        """Everything on, for another picture, model or fit."""
        if upload is None:
            return Switches(), None, None, said_plainly("There is no picture yet.")
        return self._with(Switches(), key, choice, upload, *values)

    def _toggle_patch(self, event: gr.SelectData, switches: Switches, *told: Any) -> tuple[Any, ...]:
        def toggled(analysis: Analysis) -> Switches:
            patch = self.bench.patch_at(analysis, *event.index)
            return switches if patch is None else replace(switches, patches=switches.patches ^ {patch})

        return self._with(toggled, *told)

    def _toggle_heads(self, event: gr.SelectData, switches: Switches, *told: Any) -> tuple[Any, ...]:
        if switches.sheet is None:
            return _nothing()
        chosen = _heads_at(switches.sheet, *event.index)
        # Of a whole layer: off unless all of it is.
        heads = switches.heads - chosen if chosen <= switches.heads else switches.heads | chosen
        return self._with(replace(switches, heads=heads), *told)

    def _all_on(self, switches: Switches, *told: Any) -> tuple[Any, ...]:
        on = replace(switches, heads=frozenset(), patches=frozenset())
        return self._with(on, *told)

    def _stop(self, request: gr.Request) -> None:
        self.jobs.stop(str(request.session_hash), JOB)

    def _rank(self, request: gr.Request, progress: Any = PROGRESS, *told: Any) -> tuple[Any, ...]:
        switches, key, choice, upload, *values = told
        if upload is None:
            return _nothing()
        try:
            with self.jobs.running(str(request.session_hash), JOB) as check:
                settings = self.panel.read(values)
                _, analysis = self.bench.recall(key, choice, upload, settings.sight)
                model = analysis.model
                if unasked(model, settings.target) is not None:
                    return self._shown(analysis, switches, settings.target)
                target = self.bench.target(model, settings.target)

                def report(state: Progress) -> None:
                    check()
                    progress((state.done, state.total), desc="Heads switched off one at a time", unit="heads")

                needed = forward_bytes(model.network.config, analysis.trace.layout, model.network.config.heads)
                with self.bench.budget.share(needed, "this ranking", check):
                    effects = analysis.head_effects(target, report=report)
                ranked = target_name(model, int(analysis.logits.argmax()) if target is None else target)
            return self._shown(analysis, replace(switches, effects=effects, ranked=ranked), settings.target)
        except Stopped:
            return _nothing()
        except VitvizError as error:
            return *(gr.skip() for _ in range(3)), said_plainly(str(error))

    def _with(self, wanted: Any, key: str, choice: Any, upload: Any, *values: Any) -> tuple[Any, ...]:
        """Show these switches, or those that a function makes of the analysis."""
        if upload is None:
            return _nothing()
        try:
            settings = self.panel.read(values)
            _, analysis = self.bench.recall(key, choice, upload, settings.sight)
            return self._shown(analysis, wanted if isinstance(wanted, Switches) else wanted(analysis), settings.target)
        except VitvizError as error:
            return *(gr.skip() for _ in range(3)), said_plainly(str(error))

    def _shown(self, analysis: Analysis, switches: Switches, target: Any) -> tuple[Any, ...]:
        """The switches, the picture of patches, that of heads, and what is said of both.

        Raises:
            QueryError: no patch is left.
            CheckpointError: what reads the words of the target cannot be opened.
        """
        needed = forward_bytes(analysis.model.network.config, analysis.trace.layout, 1)
        with self.bench.budget.share(needed, "this forward pass"):
            said = self._said(analysis, switches, target) + _ranking(switches)
        layout, prepared = analysis.trace.layout, analysis.prepared
        grid = (layout.grid_height, layout.grid_width)
        patches = patches_picture(prepared.image, prepared.geometry, grid, switches.patches)
        drop = None if switches.effects is None else switches.effects.drop
        heads, sheet = switches_sheet(analysis.trace.layers, analysis.trace.heads, switches.heads, drop)
        return replace(switches, sheet=sheet), patches, heads, said

    def _said(self, analysis: Analysis, switches: Switches, wanted: Any) -> str:
        model = analysis.model
        refused = unasked(model, wanted)
        if refused is not None:
            return said_plainly(f"{refused}{', and no prediction can change' * (refused == NO_CLASSES)}.")
        target = None if model.labels else self.bench.target(model, wanted)
        return text_score(analysis, switches, target) if isinstance(target, Target) else predictions(analysis, switches)


def predictions(analysis: Analysis, switches: Switches) -> str:
    """The most probable classes before and after, as HTML.

    Raises:
        QueryError: no patch is left.
    """
    labels = analysis.model.labels
    before = analysis.logits.float().softmax(-1)
    is_off = bool(switches.heads or switches.patches)
    after = analysis.switched_off(switches.heads, switches.patches).float().softmax(-1).cpu() if is_off else before
    count = min(SHOWN, len(labels))
    best = before.topk(count).indices.tolist()
    best += [index for index in after.topk(count).indices.tolist() if index not in best]
    rows = [
        _row(
            html_text(told_apart(labels, index)) + _bar(after[index]),
            before[index],
            after[index],
            PROBABILITIES,
        )
        for index in best
    ]
    return _table(switches, rows)


def text_score(analysis: Analysis, switches: Switches, target: Target) -> str:
    """The score of a target before and after, as HTML.

    Raises:
        QueryError: no patch is left.
    """
    before = target.score(analysis.switched_off())
    is_off = bool(switches.heads or switches.patches)
    after = target.score(analysis.switched_off(switches.heads, switches.patches)) if is_off else before
    return _table(switches, [_row(html_text(target.name), before, after, LOGITS)]) + said_plainly(LOGIT)


def _table(switches: Switches, rows: list[str]) -> str:
    off = f"{_count(len(switches.patches), 'patch', 'patches')} and {_count(len(switches.heads), 'head', 'heads')} off"
    heads = f"<tr><th>{off}</th><th>before</th><th>now</th><th></th></tr>"
    return f'<table class="vv-changes">{heads}{"".join(rows)}</table>'


def _row(name: str, before: torch.Tensor, after: torch.Tensor, scores: Scores) -> str:
    """One line of the table; the name is HTML."""
    was, now = float(before), float(after)
    shown = scores.level(was), f"<b>{scores.level(now)}</b>", scores.signed(now - was)
    return f"<tr><td>{name}</td>{''.join(f'<td>{each}</td>' for each in shown)}</tr>"


def _bar(probability: torch.Tensor) -> str:
    return f'<div class="vv-bar" style="width: {100 * float(probability):.1f}%"></div>'


def _ranking(switches: Switches) -> str:
    if switches.effects is None:
        return ""
    scores = PROBABILITIES if switches.effects.is_probability else LOGITS
    most = scores.change(float(switches.effects.drop.abs().max()))
    heads = "".join(
        f"<li>layer {layer}, head {head}: {scores.signed(-fall) or scores.change(0)}{scores.unit}</li>"
        for layer, head, fall in switches.effects.strongest(SHOWN)
    )
    return (
        f'<p class="vv-aside">The {scores.noun} of <b>{html_text(switches.ranked)}</b> with one head off at a time: '
        f"red where it falls, blue where it rises, by {most}{scores.unit} at most. Most needed:</p>"
        f'<ol class="vv-ranking">{heads}</ol>'
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _heads_at(sheet: SheetLayout, x: float, y: float) -> frozenset[tuple[int, int]]:
    """The head of the cell at a point; all heads of the layer whose number is there; none elsewhere."""
    cell = sheet.cell_at(x, y)
    if cell is not None:
        return frozenset({cell})
    layer = int((y - sheet.top) // sheet.cell_height)
    if x < sheet.left and 0 <= layer < sheet.rows:
        return frozenset((layer, head) for head in range(sheet.columns))
    return frozenset()


def _nothing() -> tuple[Any, ...]:
    return tuple(gr.skip() for _ in range(4))
