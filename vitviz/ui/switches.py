"""Cause and not only correlation: heads and patches switched off by a click, and what becomes of the predictions."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from vitviz.ablation import HeadEffects
from vitviz.analysis import Analysis
from vitviz.errors import VitvizError
from vitviz.figures import SheetLayout, patches_picture, switches_sheet
from vitviz.progress import Progress
from vitviz.targets import NO_CLASSIFIER
from vitviz.ui.controls import told_apart
from vitviz.ui.jobs import Jobs, Stopped
from vitviz.ui.panels import ControlPanel
from vitviz.ui.picture import PictureOutput
from vitviz.ui.texts import said_plainly
from vitviz.ui.workbench import Workbench

JOB = "heads"
SHOWN = 5
# Gradio hands its own to a handler with this default.
PROGRESS = gr.Progress()
INTRODUCTION = (
    "Click a patch, a head or the number of a layer to switch it off, and again to switch it on. The attention weights "
    "of a head that is off are zero; a patch that is off is attended to by nobody. What falls without it depended on "
    "it, whatever the maps say."
)


@dataclass(frozen=True)
class Switches:
    """What is off, and what is known of the heads.

    Args:
        heads: layer and head, counted from 0.
        patches: row and column, counted from 0.
        effects: of every head alone, where they were ranked.
        ranked: what for: the class, as the page calls it.
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
        switches, patches, heads, said = self._shown(analysis, Switches())
        with gr.Accordion("Switch parts off", open=False, elem_id="vv-switches"):
            gr.Markdown(INTRODUCTION, elem_classes="vv-aside")
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
                _, analysis = self.bench.recall(key, choice, upload, settings.fit)

                def report(state: Progress) -> None:
                    check()
                    progress((state.done, state.total), desc="Heads switched off one at a time", unit="heads")

                target = settings.target
                effects = analysis.head_effects(target, report=report)
                index = int(analysis.logits.argmax()) if target is None else int(target)
                ranked = told_apart(analysis.model.labels, index)
            return self._shown(analysis, replace(switches, effects=effects, ranked=ranked))
        except Stopped:
            return _nothing()
        except VitvizError as error:
            return *(gr.skip() for _ in range(3)), said_plainly(str(error))

    def _with(self, wanted: Any, key: str, choice: Any, upload: Any, *values: Any) -> tuple[Any, ...]:
        """Show these switches, or those that a function makes of the analysis."""
        if upload is None:
            return _nothing()
        try:
            _, analysis = self.bench.recall(key, choice, upload, self.panel.fit_of(values))
            return self._shown(analysis, wanted if isinstance(wanted, Switches) else wanted(analysis))
        except VitvizError as error:
            return *(gr.skip() for _ in range(3)), said_plainly(str(error))

    def _shown(self, analysis: Analysis, switches: Switches) -> tuple[Any, ...]:
        """The switches, the picture of patches, that of heads, and what is said of both.

        Raises:
            QueryError: no patch is left.
        """
        said = predictions(analysis, switches)
        layout, prepared = analysis.trace.layout, analysis.prepared
        grid = (layout.grid_height, layout.grid_width)
        patches = patches_picture(prepared.image, prepared.geometry, grid, switches.patches)
        drop = None if switches.effects is None else switches.effects.drop
        heads, sheet = switches_sheet(analysis.trace.layers, analysis.trace.heads, switches.heads, drop)
        return replace(switches, sheet=sheet), patches, heads, said


def predictions(analysis: Analysis, switches: Switches) -> str:
    """The most probable classes before and after, and the heads that matter most, as HTML.

    Raises:
        QueryError: no patch is left.
    """
    labels = analysis.model.labels
    if not labels:
        return said_plainly(f"{NO_CLASSIFIER[0].upper()}{NO_CLASSIFIER[1:]}, and no prediction can change.")
    before = analysis.logits.float().softmax(-1)
    is_off = bool(switches.heads or switches.patches)
    after = analysis.switched_off(switches.heads, switches.patches).float().softmax(-1).cpu() if is_off else before
    count = min(SHOWN, len(labels))
    best = before.topk(count).indices.tolist()
    best += [index for index in after.topk(count).indices.tolist() if index not in best]
    rows = "".join(_row(told_apart(labels, index), float(before[index]), float(after[index])) for index in best)
    off = f"{_count(len(switches.patches), 'patch', 'patches')} and {_count(len(switches.heads), 'head', 'heads')} off"
    table = f'<table class="vv-changes"><tr><th>{off}</th><th>before</th><th>now</th><th></th></tr>{rows}</table>'
    return table + _ranking(switches)


def _row(label: str, before: float, after: float) -> str:
    change = _points(after - before) if abs(after - before) >= 5e-4 else ""
    bar = f'<div class="vv-bar" style="width: {100 * after:.1f}%"></div>'
    return (
        f"<tr><td>{html.escape(label)}{bar}</td><td>{before:.1%}</td><td><b>{after:.1%}</b></td><td>{change}</td></tr>"
    )


def _ranking(switches: Switches) -> str:
    if switches.effects is None:
        return ""
    most = float(switches.effects.drop.abs().max())
    heads = "".join(
        f"<li>layer {layer + 1}, head {head + 1}: {_points(-fall)} points</li>"
        for layer, head, fall in switches.effects.strongest(SHOWN)
    )
    return (
        f'<p class="vv-aside">Class <b>{html.escape(switches.ranked)}</b> with one head off at a time, red where its '
        f"probability falls, blue where it rises, by {100 * most:.1f} points at most. Most needed:</p>"
        f'<ol class="vv-ranking">{heads}</ol>'
    )


def _points(change: float) -> str:
    """A change of a probability in percentage points, with its sign."""
    return f"{100 * change:+.1f}".replace("-", "−")


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
