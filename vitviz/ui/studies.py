"""Studies of one analysis that run its model many times: comparing maps, ranking heads, switching parts off, probes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS, Method
from vitviz.attribution.json_values import fields, word
from vitviz.attribution.parameters import ClassTarget, values_of
from vitviz.attribution.requests import TextPrompt, target_of
from vitviz.evaluation.comparison import Comparison
from vitviz.evaluation.comparison import compare as compare_methods
from vitviz.evaluation.probes import PROBES
from vitviz.evaluation.probes import probe as run_probe
from vitviz.evaluation.probes.findings import Findings
from vitviz.metrics.faithfulness import METRICS, RANDOM_ORDERS
from vitviz.models.probability import class_probabilities
from vitviz.models.targets import Target, resolve_target
from vitviz.ui.facts import class_names, visible
from vitviz.ui.normalize import bounds_of, parameters_of, refusal
from vitviz.ui.packs import findings_pack
from vitviz.ui.progress_reports import ProgressReport, Report, under_title
from vitviz.ui.service import AnalysisService
from vitviz.ui.state import View
from vitviz.visualization.heatmaps import Heatmap

MAX_CLASSES = 5
# The slowest probe takes about as long as this many forward passes.
PROBE_PASSES = 2
METRIC_FACTS = ("name", "title", "lower_is_better", "interpretation")
ABOUT_COMPARISON = (
    "How faithful each map is: patches are taken out in its order, and the probability of the class is watched, beside "
    f"the mean of {RANDOM_ORDERS} random orders of the same patches. Of anything else, such as likeness to a picture, "
    "it is the score, as a share: 0 for a blank picture, 1 for the whole one. The correlation is that with the map of "
    "the same model with all of its weights shuffled (Adebayo et al. 2018): a map that stays similar does not depend "
    "on what the model has learnt."
)


async def compare(service: AnalysisService, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """How faithful every map is that the model can have; the latest ones are not computed again."""
    uid = request.get("uid")
    target = await _target(service, uid, request.get("target"), report)
    settings = fields("parameters", request.get("parameters") or {}, METHODS)
    parameters = {name: _without_target(service, uid, METHODS[name], values) for name, values in settings.items()}
    known = {
        name: _known_map(service, uid, METHODS[name], settings.get(name), request.get("target")) for name in METHODS
    }

    def compute(analysis: Analysis, report: Report) -> dict[str, Any]:
        report_pass = under_title("Maps, and pictures without some of their patches", report)
        maps: dict[str, Heatmap] = {name: heatmap for name, heatmap in known.items() if heatmap is not None}
        return _compared(analysis, compare_methods(analysis, parameters, target, report=report_pass, maps=maps))

    return await service.run(service.studies, uid, compute, report)


def _compared(analysis: Analysis, comparison: Comparison) -> dict[str, Any]:
    """A comparison as the page reads it."""
    maps = []
    for compared in comparison.maps:
        correlation = compared.randomization_correlation
        maps.append(
            {
                "method": compared.method,
                "areas": compared.areas,
                "beats": {metric: comparison.beats_chance(compared, metric) for metric in compared.areas},
                "correlation": None if math.isnan(correlation) else correlation,
            }
        )
    return {
        **_target_facts(analysis, comparison.target),
        "metrics": [{name: getattr(metric, name) for name in METRIC_FACTS} for metric in METRICS.values()],
        "chance": comparison.chance,
        "maps": maps,
        "about": ABOUT_COMPARISON,
    }


async def rank(service: AnalysisService, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """How far a score falls without each head."""
    uid = request.get("uid")
    target = await _target(service, uid, request.get("target"), report)

    def compute(analysis: Analysis, report: Report) -> dict[str, Any]:
        effects = analysis.head_effects(target, report=under_title("Heads switched off one at a time", report))
        facts = _target_facts(analysis, int(analysis.logits.argmax()) if target is None else target)
        return {**facts, "drops": effects.drop.tolist()}

    return await service.run(service.studies, uid, compute, report)


async def switch(service: AnalysisService, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The model's output with some heads and patches switched off."""
    uid = request.get("uid")
    target = await _target(service, uid, request.get("target"), report)
    off = View(heads_off=request.get("heads") or (), patches_off=request.get("patches") or ())
    line = service.pass_line(service.cached(uid))
    return await service.run(line, uid, lambda analysis, _: _switched(analysis, off, target), report)


def _switched(analysis: Analysis, off: View, target: int | Target | None) -> dict[str, Any]:
    if isinstance(target, Target):
        before = analysis.switched_off(target=target)
        after = analysis.switched_off(off.heads_off, off.patches_off, target=target)
        rows: list[dict[str, Any]] = [{"name": visible(target.name), "before": float(before), "after": float(after)}]
        return {"unit": "score", "rows": rows}
    unit, before = _unit(analysis), analysis.logits
    after = analysis.switched_off(off.heads_off, off.patches_off).cpu()
    if unit == "probability":
        function = analysis.model.network.config.probability
        before, after = class_probabilities(before, function), class_probabilities(after, function)
    names, count = class_names(analysis.model.labels), min(MAX_CLASSES, len(analysis.model.labels))
    best = [index for scores in (before, after) for index in scores.topk(count).indices.tolist()]
    classes = dict.fromkeys(best if target is None else [*best, target])
    rows = [{"name": names[at], "index": at, "before": float(before[at]), "after": float(after[at])} for at in classes]
    return {"unit": unit, "rows": rows}


async def probe(service: AnalysisService, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The findings of a probe: a sentence, a table, and a file of its measurements."""
    uid = request.get("uid")
    analysis = service.cached(uid)
    record = PROBES[word("probe", request.get("probe"), PROBES)]
    parameters = values_of(record.parameters, request.get("parameters"), bounds_of(analysis))
    # It may be dropped while this waits.
    line = service.pass_line(analysis, PROBE_PASSES)
    del analysis

    def compute(analysis: Analysis, report: Report) -> tuple[Findings, str]:
        report(ProgressReport(record.title))
        findings = run_probe(analysis, record.name, **parameters)
        return findings, service.folder.publish(findings_pack(findings), "pack.safetensors")

    findings, address = await service.run(line, uid, compute, report)
    return {
        "probe": record.name,
        "summary": visible(findings.summary),
        "heading": list(map(visible, findings.heading)),
        "rows": [list(map(visible, row)) for row in findings.rows],
        "address": address,
    }


async def _target(service: AnalysisService, uid: object, value: object, report: Report) -> int | Target | None:
    """The target of a measurement: a class, another target, or None for the most probable class.

    Raises:
        MethodError: there is nothing to measure.
    """
    request = None
    if value is not None:
        bounds = bounds_of(service.cached(uid))
        request = target_of("request.target", value, bounds)
    if isinstance(request, TextPrompt):
        report(ProgressReport("Reading the text"))
    target = await service.target_of(uid, request, report)
    analysis = service.cached(uid)
    return None if target is None else resolve_target(target, analysis.logits, analysis.model.labels)


def _without_target(service: AnalysisService, uid: object, method: Method, values: object) -> dict[str, Any]:
    """The parameters of a method but for its target; none where the model cannot serve the method."""
    analysis = service.cached(uid)
    if refusal(method, analysis.model) is not None:
        return {}
    parameters = [parameter for parameter in method.parameters if not isinstance(parameter.kind, ClassTarget)]
    return values_of(parameters, values, bounds_of(analysis), f"parameters.{method.name}")


def _known_map(service: AnalysisService, uid: object, method: Method, values: object, target: object) -> Heatmap | None:
    """A map that was computed lately, or None."""
    analysis = service.cached(uid)
    if refusal(method, analysis.model) is not None:
        return None
    asked = dict(values) if isinstance(values, Mapping) else {}
    if method.class_specific and target is not None:
        asked["target"] = target
    return service.known_heatmap(uid, method, parameters_of(method, asked, analysis))


def _target_facts(analysis: Analysis, target: int | Target) -> dict[str, Any]:
    if isinstance(target, Target):
        return {"target": None, "target_name": visible(target.name), "unit": "score"}
    return {"target": target, "target_name": class_names(analysis.model.labels)[target], "unit": _unit(analysis)}


def _unit(analysis: Analysis) -> str:
    """The unit of a class's score; that of a regression is its output."""
    return "probability" if analysis.model.gives_probabilities else "score"
