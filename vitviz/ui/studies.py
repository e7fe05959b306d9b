"""Studies of one analysis that run its model many times: comparing maps, ranking heads, switching parts off, probes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitviz.analysis.analysis import Analysis
from vitviz.attribution import METHODS
from vitviz.attribution.json_values import fields, word
from vitviz.attribution.parameters import values_of
from vitviz.attribution.requests import target_of
from vitviz.evaluation.comparison import Comparison
from vitviz.evaluation.comparison import compare as compare_methods
from vitviz.evaluation.probes import PROBES
from vitviz.evaluation.probes import probe as run_probe
from vitviz.evaluation.probes.findings import Findings
from vitviz.metrics.faithfulness import METRIC_NAMES, METRICS, RANDOM_ORDERS
from vitviz.models.probability import class_probabilities
from vitviz.models.targets import Target, resolve_target
from vitviz.ui.facts import class_names, visible
from vitviz.ui.normalize import bounds_of, parameters_of, refusal
from vitviz.ui.packs import findings_pack
from vitviz.ui.progress_reports import ProgressReport, Report, under_title
from vitviz.ui.service import AnalysisService, map_key
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
    """How faithful every map is that the model can have; the latest ones are not computed again.

    Each report has the scores that are known; the map of each method with a score is among the latest.
    """
    uid, value = request.get("uid"), request.get("target")
    target = await _target(service, request, report)
    parameters, maps = _known_maps(service, uid, request.get("parameters"), value)

    def compute(analysis: Analysis, report: Report) -> dict[str, Any]:
        scores: dict[str, Any] | None = None

        def show(comparison: Comparison) -> None:
            nonlocal scores
            for name, heatmap in maps.items():
                service.origins[analysis].maps.put(map_key(METHODS[name], parameters[name]), heatmap)
            scores = _compared(analysis, comparison)

        report_pass = under_title("Scores of all methods", report, lambda: scores)
        return _compared(
            analysis, compare_methods(analysis, parameters, target, METRIC_NAMES, 0, report_pass, maps, show)
        )

    return await service.run(service.long, uid, compute, report)


def _compared(analysis: Analysis, comparison: Comparison) -> dict[str, Any]:
    """A comparison as the page reads it."""
    return {
        **_target_facts(analysis, comparison.target),
        "metrics": [{name: getattr(metric, name) for name in METRIC_FACTS} for metric in METRICS.values()],
        "chance": comparison.chance,
        "maps": [
            {
                "method": each.method,
                "areas": each.areas,
                "beats": {metric: comparison.beats_chance(each, metric) for metric in each.areas if comparison.chance},
                "correlation": None if math.isnan(each.randomization_correlation) else each.randomization_correlation,
            }
            for each in comparison.maps
        ],
        "about": ABOUT_COMPARISON,
    }


async def rank(service: AnalysisService, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """How far a score falls without each head."""
    uid = request.get("uid")
    target = await _target(service, request, report)

    def compute(analysis: Analysis, report: Report) -> dict[str, Any]:
        effects = analysis.head_effects(target, report=under_title("Heads switched off one at a time", report))
        facts = _target_facts(analysis, int(analysis.logits.argmax()) if target is None else target)
        return {**facts, "drops": effects.drop.tolist()}

    return await service.run(service.long, uid, compute, report)


async def flip(service: AnalysisService, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The squares without which the answer is another one."""

    def compute(analysis: Analysis, report: Report) -> dict[str, Any]:
        reply = service.origins[analysis].flip
        if not reply:
            found = analysis.flip(random_orders=0, report=under_title("Covering squares", report))
            after = {"index": found.after.index, "probability": found.after.probability}
            changes = _switched(analysis, View(patches_off=found.patches), None)
            reply |= {"patches": list(map(list, found.patches)), "after": after, "changes": changes}
        return reply

    return await service.run(service.long, request.get("uid"), compute, report)


async def switch(service: AnalysisService, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The model's output with some heads and patches switched off."""
    uid = request.get("uid")
    target = await _target(service, request, report)
    off = View(heads_off=request.get("heads") or (), patches_off=request.get("patches") or ())
    line = service.pass_line(service.cached(uid))
    return await service.run(line, uid, lambda analysis, _: _switched(analysis, off, target), report)


def _switched(analysis: Analysis, off: View, target: int | Target | None) -> dict[str, Any]:
    """The output before and after: of the target, and of the likeliest classes of a model that gives probabilities."""
    gives_probabilities = analysis.model.gives_probabilities
    if isinstance(target, Target):
        before = analysis.switched_off(target=target)
        after = analysis.switched_off(off.heads_off, off.patches_off, target=target)
        row = {"name": visible(target.name), "before": float(before), "after": float(after)}
        return {"unit": "score", "rows": [row], "classes": _classes(analysis, off) if gives_probabilities else []}
    rows = _classes(analysis, off, target)
    return {"unit": _unit(analysis), "rows": rows, "classes": rows if gives_probabilities else []}


def _classes(analysis: Analysis, off: View, target: int | None = None) -> list[dict[str, Any]]:
    """The likeliest classes before and after, and the target; of a regression, its outputs."""
    before, after = analysis.logits, analysis.switched_off(off.heads_off, off.patches_off).cpu()
    if analysis.model.gives_probabilities:
        function = analysis.model.network.config.probability
        before, after = class_probabilities(before, function), class_probabilities(after, function)
    names, count = class_names(analysis.model.labels), min(MAX_CLASSES, len(analysis.model.labels))
    best = [index for scores in (before, after) for index in scores.topk(count).indices.tolist()]
    classes = dict.fromkeys(best if target is None else [*best, target])
    return [{"name": names[at], "index": at, "before": float(before[at]), "after": float(after[at])} for at in classes]


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


def _known_maps(
    service: AnalysisService, uid: object, value: object, target: object
) -> tuple[dict[str, dict[str, Any]], dict[str, Heatmap]]:
    """Of all methods of the model, the parameters, and those of their maps that are among the latest."""
    analysis, settings = service.cached(uid), fields("parameters", value or {}, METHODS)
    parameters, maps = dict[str, dict[str, Any]](), dict[str, Heatmap]()
    for name, method in METHODS.items():
        if refusal(method, analysis.model) is None:
            given = settings.get(name)
            if method.class_specific and target is not None and isinstance(given, Mapping | None):
                given = {**(given or {}), "target": target}
            max_bytes = service.server_settings.analysis_bytes
            parameters[name] = parameters_of(method, given, analysis, f"parameters.{name}", max_bytes)
            if (heatmap := service.known_heatmap(uid, method, parameters[name])) is not None:
                maps[name] = heatmap
    return parameters, maps


async def _target(service: AnalysisService, request: Mapping[str, Any], report: Report) -> int | Target | None:
    """The target of a measurement: a class, another target, or None for the most probable class.

    Raises:
        MethodError: there is nothing to measure.
    """
    uid, value = request.get("uid"), request.get("target")
    choice = None if value is None else target_of("target", value, bounds_of(service.cached(uid)))
    target = await service.target_of(uid, choice, report)
    analysis = service.cached(uid)
    return None if target is None else resolve_target(target, analysis.logits, analysis.model.labels)


def _target_facts(analysis: Analysis, target: int | Target) -> dict[str, Any]:
    if isinstance(target, Target):
        return {"target": None, "target_name": visible(target.name), "unit": "score"}
    return {"target": target, "target_name": class_names(analysis.model.labels)[target], "unit": _unit(analysis)}


def _unit(analysis: Analysis) -> str:
    """The unit of a class's score; that of a regression is its output."""
    return "probability" if analysis.model.gives_probabilities else "score"
