"""What the page is told of methods, models and analyses, as JSON."""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import cache, lru_cache
from typing import Any

import numpy as np
from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.attention.sinks import (
    OUTLIER_DEVIATIONS,
    OUTLIER_RATIO,
    OutlierRule,
    norms_of_patches,
    outlier_patches,
)
from vitviz.attention.trace import AttentionTrace
from vitviz.attribution import METHODS, Method
from vitviz.attribution.methods import Choice, Number, Parameter
from vitviz.errors.number_text import digits
from vitviz.evaluation.probes import PROBES, Probe
from vitviz.ui.files import as_base64, as_webp
from vitviz.ui.normalize import pools_by_attention, refusal, resolution_step
from vitviz.ui.packs import rolls
from vitviz.ui.pictures import EXAMPLES
from vitviz.ui.records import KINDS, MOST_PREDICTIONS
from vitviz.ui.state import NATIVE, TOKEN_METHOD, View
from vitviz.visualization.heatmaps import COLORMAPS, colour_table
from vitviz.visualization.scales import AUTOMATIC, SCALES
from vitviz.weights import OVERRIDES, Model, describe, resources
from vitviz.weights.text_tower import MAX_TEXT_CHARS, reads_text

FITS = (
    {"name": "squash", "title": "squash (whole picture, stretched)"},
    {"name": "crop", "title": "crop (centre)"},
    {"name": "native", "title": "native (whole picture, own shape)"},
)
# Of the trained resolution.
LARGER = (1.5, 2, 3, 4)
CAPTIONS = {"chelsea.jpg": "cat", "rocket.jpg": "rocket", "coffee.jpg": "coffee", "astronaut.jpg": "astronaut"}
THUMBNAIL_SIDE = 128
# The colours of what may be above or below zero, which the page knows by this name.
DIFFERENCE = "coolwarm"
# They shape letters and emoji.
JOINERS = "\u200c\u200d"
# Of a picture's area: where a crop shows less, it hides most of it.
LEAST_SEEN = 0.5
# What a map says of whom, by which the menu groups methods.
TOKEN, LAYERS, TARGET = "token", "layers", "target"


def settings() -> dict[str, Any]:
    """What a page knows wherever it is: its colours, and the methods."""
    return {
        "colours": colours(),
        "methods": [method_facts(method) for method in METHODS.values()],
        "scales": scales(),
        "probes": [probe_facts(probe) for probe in PROBES.values()],
        "fits": list(FITS),
        "overrides": list(OVERRIDES),
        "max_text_chars": MAX_TEXT_CHARS,
        "models": [],
        "examples": [],
        "max_upload_bytes": 0,
        "least_seen": LEAST_SEEN,
    }


def scales() -> list[dict[str, Any]]:
    """The scales, the one first that is chosen from the values of a map."""
    automatic = {"name": None, "title": "Automatic", "help": AUTOMATIC, "caption": ""}
    named = ({name: getattr(scale, name) for name in automatic} for scale in SCALES.values())
    return [automatic, *named]


def method_facts(method: Method) -> dict[str, Any]:
    """A method, with all that its controls need."""
    return {
        "name": method.name,
        "title": method.title,
        "group": _group(method),
        "about_a_class": method.class_specific,
        "begins_with_identity": method.begins_with_identity,
        "interpretation": method.interpretation,
        "citation": method.citation,
        # The page computes it from queries and keys.
        "live": method.name == TOKEN_METHOD,
        "parameters": [_parameter_facts(parameter) for parameter in method.parameters],
    }


def probe_facts(probe: Probe) -> dict[str, Any]:
    """A probe, with all that its controls need."""
    return {
        "name": probe.name,
        "title": probe.title,
        "interpretation": probe.interpretation,
        "citation": probe.citation,
        "parameters": [_parameter_facts(parameter) for parameter in probe.parameters],
    }


def _group(method: Method) -> str:
    if method.class_specific:
        return TARGET
    return LAYERS if any(parameter.name == "start_layer" for parameter in method.parameters) else TOKEN


def _parameter_facts(parameter: Parameter) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": parameter.name,
        "title": parameter.title,
        "kind": KINDS[type(parameter)],
        "help": parameter.help,
        "default": parameter.default,
    }
    match parameter:
        case Choice():
            found["options"] = [{"title": title, "value": value} for title, value in parameter.options]
        case Number():
            found |= {"minimum": parameter.minimum, "maximum": parameter.maximum, "step": parameter.step}
    return found


def model_facts(model_id: str, title: str, model: Model) -> dict[str, Any]:
    """A model that is open.

    Args:
        model_id: as a state calls it.
        title: as the menu calls it; of a visitor's own checkpoint, the name of its file.
        model: the model.
    """
    config = model.network.config
    layout = config.layout(config.image_height, config.image_width)
    card = {check.fact: check.value for check in describe(config)}
    card |= {"parameters": f"{model.parameters:,}", **model.card}
    return {
        "id": model_id,
        "name": visible(model.name),
        "title": visible(title),
        "fit": model.preprocessing.fit,
        "resolutions": _resolutions(model),
        "labels": list(class_names(model.labels)),
        "reads_text": reads_text(model),
        "refusals": {name: f"{reason}." for name, method in METHODS.items() if (reason := refusal(method, model))},
        "probe_refusals": {
            name: f"{probe.title}: {reason}." for name, probe in PROBES.items() if (reason := probe.refusal(config))
        },
        "card": [[visible(name), visible(str(value))] for name, value in card.items()],
        "assumptions": _assumptions(model),
        "steps": None if model.snapshots is None else list(model.snapshots.steps),
        "patch": [config.patch_height, config.patch_width],
        "default_query": None if pools_by_attention(model) else layout.default_query,
        "pools_by_attention": pools_by_attention(model),
    }


def _assumptions(model: Model) -> str:
    """What its checkpoint does not say and vitviz took from published ones; empty where there is nothing."""
    return (
        f"Assumed, since its file does not say it: {visible('; '.join(model.assumptions))}."
        if model.assumptions
        else ""
    )


def _resolutions(model: Model) -> list[dict[str, Any]]:
    """What a menu of resolutions offers; any other multiple of the patch is legal, too."""
    trained, step = min(model.preprocessing.height, model.preprocessing.width), resolution_step(model)
    sizes = dict.fromkeys(round(trained * times / step) * step for times in LARGER)
    larger = [{"title": f"{size} pixels", "value": size} for size in sizes if size > trained]
    first = {"title": f"as trained, {trained} pixels", "value": None}
    return [first, *larger, {"title": "the picture's own", "value": NATIVE}]


def visible(text: str) -> str:
    """A text in one line, in which characters that turn text around, or that are not seen, are written as escapes."""
    return "".join(map(_visible, " ".join(text.split())))


def _visible(letter: str) -> str:
    hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co") and letter not in JOINERS
    return letter.encode("unicode_escape").decode() if hidden else letter


@lru_cache(maxsize=16)
def class_names(labels: tuple[str, ...]) -> tuple[str, ...]:
    """The classes as the page calls them: by label, with the number where several have the same."""
    names = list(map(visible, labels))
    counts = Counter(names)
    return tuple(f"{name} ({index})" if counts[name] > 1 else name for index, name in enumerate(names))


def analysis_facts(
    uid: str,
    analysis: Analysis,
    picture: dict[str, Any],
    *,
    view: View,
    name: str = "picture.jpg",
    pixels: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """An analysis, before the page asks for its files.

    Args:
        uid: by which the page asks.
        analysis: of one picture.
        picture: what the page draws on, as Gradio sends a file.
        view: what the analysis was asked for by.
        name: of the picture's file.
        pixels: width and height of the picture as it was given, where the page may ask for it.
    """
    prepared, layout, trace, owner = analysis.prepared, analysis.trace.layout, analysis.trace, analysis.model
    middle = layout.index((layout.grid_height // 2, layout.grid_width // 2))
    return {
        "uid": uid,
        "picture": picture,
        "width": prepared.image.width,
        "height": prepared.image.height,
        "pixels": list(pixels or prepared.image.size),
        "box": [float(edge) for edge in prepared.geometry.box],
        "rows": layout.grid_height,
        "columns": layout.grid_width,
        "prefix": list(layout.prefix),
        "start": 0 if layout.prefix else middle,
        "layers": trace.layers,
        "heads": trace.heads,
        "windows": list(trace.windows),
        "rolls": rolls(trace),
        "outliers": outliers(trace),
        "model": view.model,
        "step": view.step,
        "name": visible(name),
        "fit": view.fit or owner.preprocessing.fit,
        "resolution": min(prepared.geometry.input_height, prepared.geometry.input_width),
        "predictions": predictions(analysis),
        "is_out_of_distribution": analysis.is_out_of_distribution,
    }


def outliers(trace: AttentionTrace) -> dict[str, Any] | None:
    """The patches of outlying norm, and a sentence that counts them and states the rule; None without norms."""
    if trace.norms is None:
        return None
    layout, rule, tokens = trace.layout, OutlierRule.of(norms_of_patches(trace)), outlier_patches(trace)
    count = f"{len(tokens)} of {layout.patch_count} patches" if tokens else "No patch"
    verb = "is an outlier" if len(tokens) < 2 else "are outliers"
    about = (
        f"{count} {verb}: norm above {digits(rule.threshold)} where the "
        f"tokens enter the last layer (the larger of {OUTLIER_RATIO:g} times the median of all patches and the median "
        f"plus {OUTLIER_DEVIATIONS:g} median absolute deviations)."
    )
    return {"patches": [list(layout.cell(token)) for token in tokens], "about": about}


def predictions(analysis: Analysis) -> list[dict[str, Any]]:
    """The most probable classes; nothing for a model without a classifier."""
    labels = class_names(analysis.model.labels)
    best = analysis.logits.float().softmax(-1).topk(min(MOST_PREDICTIONS, len(labels)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [{"index": at, "label": labels[at], "probability": share} for at, share in pairs]


@cache
def examples() -> list[dict[str, str]]:
    """The examples, each with a small picture of it inside of its address."""
    return [
        {"id": f"example:{name}", "url": _thumbnail(name), "name": name, "caption": CAPTIONS[name]} for name in EXAMPLES
    ]


def _thumbnail(name: str) -> str:
    with Image.open(resources("assets") / name) as image:
        small = image.convert("RGB")
        small.thumbnail((THUMBNAIL_SIDE * 2, THUMBNAIL_SIDE))
    return f"data:image/webp;base64,{as_base64(as_webp(small))}"


@cache
def colours() -> dict[str, str]:
    """The colour tables, ``"value channel"`` bytes in base64, by name."""
    tables = {name: colour_table(name).round().astype(np.uint8).tobytes() for name in (*COLORMAPS, DIFFERENCE)}
    return {name: as_base64(table) for name, table in tables.items()}
