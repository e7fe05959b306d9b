"""What is found out about one analysis by running its model many times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS, Method
from vitviz.attribution.methods import ClassTarget
from vitviz.evaluation.comparison import compare
from vitviz.metrics.faithfulness import METRICS, RANDOM_ORDERS
from vitviz.models.targets import Target, resolve_target
from vitviz.progress import Progress
from vitviz.ui.arguments import Bounds, LikenessRequest, fields, parameter_of, values_of
from vitviz.ui.facts import class_names, visible
from vitviz.ui.files import as_base64
from vitviz.ui.normalize import refusal
from vitviz.ui.packs import map_file
from vitviz.ui.server.estimates import comparison_bytes, forward_bytes
from vitviz.ui.service import AnalysisService
from vitviz.ui.state import View
from vitviz.ui.steps import Report, Step, waiting_for_memory
from vitviz.weights.text_tower import TextPrompt

SHOWN_CLASSES = 5
METRIC_FACTS = ("name", "title", "lower_is_better", "interpretation")
ABOUT_COMPARISON = (
    "How faithful each map is: patches are taken out in its order, and the probability of the class is watched, beside "
    f"the mean of {RANDOM_ORDERS} random orders of the same patches. Of anything else, such as likeness to a picture, "
    "it is the score, as a share: 0 for a blank picture, 1 for the whole one. The correlation is that with the map of "
    "the same model with all of its weights shuffled (Adebayo et al. 2018): a map that stays similar does not depend "
    "on what the model has learnt."
)


class Studies:
    """Answers the requests of pages that compare maps, rank heads and switch parts off.

    Args:
        service: the analyses, and whose turn it is.
    """

    def __init__(self, service: AnalysisService) -> None:
        self.service = service

    def compare(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """All maps that the model can have, and how faithful each is."""
        analysis = self.service.cached(request.get("uid"))
        target = self._target(analysis, request.get("target"), report)
        given = fields("parameters", request.get("parameters") or {}, METHODS)
        parameters = {name: self._without_target(analysis, METHODS[name], each) for name, each in given.items()}

        def done(state: Progress) -> None:
            report(Step("Maps, and pictures without some of their patches", state.done, state.total))

        with self.service.turn(self.service.studies, comparison_bytes(analysis), "this comparison", report):
            found = compare(analysis, parameters, target, report=done)
        maps = []
        for each in found.maps:
            method = METHODS[each.method]
            content = map_file(analysis, method, parameters.get(each.method, {}), each.heatmap.token_map)
            correlation = each.randomization_correlation
            maps.append(
                {
                    "method": each.method,
                    "content": as_base64(content),
                    "areas": each.areas,
                    "beats": {metric: found.beats_chance(each, metric) for metric in each.areas},
                    "correlation": None if math.isnan(correlation) else correlation,
                }
            )
        return {
            **self._about(analysis, found.target),
            "metrics": [{name: getattr(metric, name) for name in METRIC_FACTS} for metric in METRICS.values()],
            "chance": found.chance,
            "maps": maps,
            "about": ABOUT_COMPARISON,
        }

    def rank(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """How far a score falls without each head."""
        analysis = self.service.cached(request.get("uid"))
        target = self._target(analysis, request.get("target"), report)
        config = analysis.model.network.config

        def done(state: Progress) -> None:
            report(Step("Heads switched off one at a time", state.done, state.total))

        needed = forward_bytes(config, analysis.trace.layout, config.heads)
        with self.service.turn(self.service.studies, needed, "this ranking", report):
            effects = analysis.head_effects(target, report=done)
        about = self._about(analysis, int(analysis.logits.argmax()) if target is None else target)
        return {**about, "drops": effects.drop.tolist()}

    def switch(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """What the model says with some heads and patches switched off."""
        analysis = self.service.cached(request.get("uid"))
        target = self._target(analysis, request.get("target"), report)
        off = View(heads_off=request.get("heads") or (), patches_off=request.get("patches") or ())
        needed = forward_bytes(analysis.model.network.config, analysis.trace.layout, 1)
        with self.service.turn(self.service.pass_lock(analysis), needed, "this forward pass", report):
            if isinstance(target, Target):
                before = analysis.switched_off(target=target)
                after = analysis.switched_off(off.heads_off, off.patches_off, target=target)
                rows = [{"name": visible(target.name), "before": float(before), "after": float(after)}]
                return {"unit": "score", "rows": rows}
            before = analysis.logits.float().softmax(-1)
            after = analysis.switched_off(off.heads_off, off.patches_off).float().softmax(-1).cpu()
        names, count = class_names(analysis.model.labels), min(SHOWN_CLASSES, len(analysis.model.labels))
        chosen = [] if target is None else [target]
        best = dict.fromkeys([*before.topk(count).indices.tolist(), *after.topk(count).indices.tolist(), *chosen])
        rows = [{"name": names[at], "index": at, "before": float(before[at]), "after": float(after[at])} for at in best]
        return {"unit": "probability", "rows": rows}

    def _target(self, analysis: Analysis, value: object, report: Report) -> int | Target | None:
        """What is measured: a class, another target, or None for the most probable class.

        Raises:
            MethodError: there is nothing to measure.
        """
        model = analysis.model
        target = None
        if value is not None:
            target = parameter_of(
                ClassTarget("target", "", ""), value, Bounds.of(model, analysis.trace.layout), "request"
            )
        if isinstance(target, TextPrompt):
            report(Step("Reading the text"))
        if isinstance(target, LikenessRequest):
            report(Step("Looking at the other picture"))
        found = self.service.target_of(analysis, target, waiting_for_memory(report))
        return None if found is None else resolve_target(found, analysis.logits, model.labels)

    def _without_target(self, analysis: Analysis, method: Method, given: object) -> dict[str, Any]:
        if refusal(method, analysis.model) is not None:
            return {}
        others = [part for part in method.parameters if not isinstance(part, ClassTarget)]
        bounds = Bounds.of(analysis.model, analysis.trace.layout)
        return values_of(others, given, bounds, f"parameters.{method.name}")

    def _about(self, analysis: Analysis, target: int | Target) -> dict[str, Any]:
        if isinstance(target, Target):
            return {"target": None, "target_name": visible(target.name), "unit": "score"}
        return {"target": target, "target_name": class_names(analysis.model.labels)[target], "unit": "probability"}
