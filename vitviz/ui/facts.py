"""Methods, models and analyses as JSON for the page."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache, lru_cache
from textwrap import shorten
from typing import Any

import numpy as np
from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.attention.sinks import (
    OUTLIER_DEVIATIONS,
    OUTLIER_RATIO,
    OutlierRule,
    norms_of_patches,
    outlier_count,
    outlier_patches,
)
from vitviz.attention.trace import AttentionTrace
from vitviz.attribution import METHODS, Method
from vitviz.errors.number_text import digits
from vitviz.evaluation.probes import PROBES, Probe
from vitviz.images.colours import CONVERTED
from vitviz.images.levels import DARK
from vitviz.models.targets import MAX_TEXT_CHARS
from vitviz.ui.first_view import far_look_worth_opening
from vitviz.ui.image_bytes import as_base64, as_webp
from vitviz.ui.normalize import pools_by_attention, refusal, resolution_step
from vitviz.ui.packs import has_rollouts
from vitviz.ui.pictures import EXAMPLES
from vitviz.ui.state import NATIVE, View
from vitviz.visualization.colormaps import COLORMAPS, DIVERGING_COLORMAP, colour_table
from vitviz.visualization.scales import AUTOMATIC, SCALES
from vitviz.weights import Model, resources
from vitviz.weights.metadata.classes import assumed_names
from vitviz.weights.overrides import OVERRIDES
from vitviz.weights.read import describe

MAX_PREDICTIONS = 5
FITS = (
    {"name": "squash", "title": "squash (whole picture, stretched)"},
    {"name": "crop", "title": "crop (centre)"},
    {"name": "native", "title": "native (whole picture, own shape)"},
)
# The resolutions of the menu, in multiples of the trained one.
RESOLUTION_FACTORS = (1.5, 2, 3, 4)
CAPTIONS = {
    "chelsea.jpg": "cat",
    "flower.jpg": "flower",
    "perch.jpg": "fish",
    "chart.png": "chart",
    "coffee.jpg": "coffee",
    "rocket.jpg": "rocket",
    "astronaut.jpg": "astronaut",
}
# Of some far looks, by picture, layer, head and square, what a person sees in them.
FINDINGS = {
    ("chelsea.jpg", 6, 5, (6, 10)): "Here one eye asks: in this head, {} of its attention goes to the other.",
    ("coffee.jpg", 4, 1, (5, 4)): "Here one side of the rim asks: in this head, {} of its attention goes across.",
    ("flower.jpg", 4, 1, (9, 3)): "Here a petal asks: in this head, {} of its attention goes to the one across.",
}
FINDING = "This square gives {} of its attention to one place far from it."
# Of parameters times tokens: up to this, a search for the squares that change the answer takes a few seconds.
QUICK_SEARCH = 5e9
# The example that opens with the squares covered without which the model says something else.
COVERED = "coffee.jpg"
THUMBNAIL_SIDE = 128
# Zero-width joiners shape letters and emoji.
JOINERS = "\u200c\u200d"
# The page shows a new picture whole if the model's crop would leave less of its area.
MIN_VISIBLE_SHARE = 0.5
# The groups of methods in the menu.
TOKEN, LAYERS, TARGET = "token", "layers", "target"


def settings() -> dict[str, Any]:
    """Colours, methods and probes: the settings of any page, with or without a server."""
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
        "least_seen": MIN_VISIBLE_SHARE,
    }


def scales() -> list[dict[str, Any]]:
    """The scales; the first, automatic one is chosen from the values of a map."""
    automatic = {"name": None, "title": "Automatic", "help": AUTOMATIC, "caption": "", "signed_caption": ""}
    named = ({name: getattr(scale, name) for name in automatic} for scale in SCALES.values())
    return [automatic, *named]


def method_facts(method: Method) -> dict[str, Any]:
    """A method and its controls."""
    reads_layers = any(parameter.name == "start_layer" for parameter in method.parameters)
    return {
        **probe_facts(method),
        "group": TARGET if method.class_specific else LAYERS if reads_layers else TOKEN,
        "about_a_class": method.class_specific,
        "begins_with_identity": method.begins_with_identity,
        "computed_by": method.computed_by,
        "page_parameters": list(method.page_parameters),
    }


def probe_facts(record: Probe | Method) -> dict[str, Any]:
    """A probe and its controls; what methods have in common with probes."""
    return {
        "name": record.name,
        "title": record.title,
        "interpretation": record.interpretation,
        "citation": record.citation,
        "parameters": [parameter.facts() for parameter in record.parameters],
    }


def model_facts(model_id: str, title: str, model: Model) -> dict[str, Any]:
    """An open model.

    Args:
        model_id: its name in states.
        title: its title in the menu, or the file name of a visitor's own checkpoint.
        model: the model.
    """
    config = model.network.config
    layout = config.layout(config.image_height, config.image_width)
    card = {check.fact: check.value for check in describe(config)}
    card |= {"parameters": f"{model.parameters:,}"} if model.parameters else {}
    card |= model.card
    assumptions = visible("; ".join(model.assumptions))
    return {
        "id": model_id,
        "name": visible(model.name),
        "title": visible(title),
        "fit": model.preprocessing.fit,
        "resolutions": _resolutions(model),
        "trained_resolution": min(model.preprocessing.height, model.preprocessing.width),
        "detail": model.preprocessing.detail,
        "labels": list(class_names(model.labels)),
        "reads_text": model.reads_text,
        "why_no_hiding": visible(model.network.why_no_hiding or ""),
        "refusals": {name: f"{reason}." for name, method in METHODS.items() if (reason := refusal(method, model))},
        "probe_refusals": {
            name: f"{probe.title}: {reason}." for name, probe in PROBES.items() if (reason := probe.refusal(config))
        },
        "card": [[visible(name), visible(str(value))] for name, value in card.items()],
        "assumptions": f"Assumed, since its file does not say it: {assumptions}." if assumptions else "",
        "color_profile": model.preprocessing.color_profile,
        "steps": None if model.snapshots is None else list(model.snapshots.steps),
        "patch": [config.patch_height, config.patch_width],
        "default_query": None if pools_by_attention(model) else layout.default_query,
        "pools_by_attention": pools_by_attention(model),
    }


def assumed_sentence(model: Model) -> str:
    """What opening a checkpoint assumed, in one short sentence; empty for nothing."""
    parts = []
    for fact, text in model.card.items():
        value, is_assumed, source = text.removesuffix(")").partition(" (assumed: ")
        if not is_assumed:
            continue
        if fact == "preprocessing":
            parts.append(f"preprocessing ({source.partition(';')[0]})")
        elif fact == "labels":
            parts.append(assumed_names(source))
        else:
            parts.append(shorten(f"{fact} {value}", 40, placeholder="…"))
    place = "details under “About this model” in the menu “Model”"
    return f"Assumed: {visible(', '.join(parts))}; {place}." if parts else ""


def _resolutions(model: Model) -> list[dict[str, Any]]:
    """The menu of resolutions; other multiples of the patch are legal, too."""
    trained, step = min(model.preprocessing.height, model.preprocessing.width), resolution_step(model)
    sizes = dict.fromkeys(round(trained * factor / step) * step for factor in RESOLUTION_FACTORS)
    larger = [{"title": f"{size} pixels", "value": size} for size in sizes if size > trained]
    first = {"title": f"as trained, {trained} pixels", "value": None}
    return [first, *larger, {"title": "the picture's own", "value": NATIVE}]


def visible(text: str) -> str:
    """The text in one line; escapes stand for invisible characters and for those that reorder text."""
    return "".join(map(_visible, " ".join(text.split())))


def _visible(letter: str) -> str:
    hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co") and letter not in JOINERS
    return letter.encode("unicode_escape").decode() if hidden else letter


@lru_cache(maxsize=16)
def class_names(labels: tuple[str, ...]) -> tuple[str, ...]:
    """The names of classes on the page: the label, with the index of a label that several have."""
    names = list(map(visible, labels))
    counts = Counter(names)
    return tuple(f"{name} ({index})" if counts[name] > 1 else name for index, name in enumerate(names))


def analysis_facts(
    uid: str,
    analysis: Analysis,
    picture: str,
    *,
    view: View,
    name: str = "picture.jpg",
    pixels: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """An analysis, without its files.

    Args:
        uid: its id in requests.
        analysis: of one picture.
        picture: address of the canvas picture.
        view: of which it is the analysis.
        name: file name of the picture.
        pixels: width and height of the original picture, if the page may ask for it.
    """
    prepared, layout, trace, model = analysis.prepared, analysis.trace.layout, analysis.trace, analysis.model
    middle = layout.index((layout.grid_height // 2, layout.grid_width // 2))
    return {
        "uid": uid,
        "picture": picture,
        "width": prepared.image.width,
        "height": prepared.image.height,
        "pixels": list(pixels or prepared.image.size),
        "box": [float(edge) for edge in prepared.geometry.resized(*prepared.image.size).box],
        "assumptions": visible("; ".join(prepared.assumptions)),
        "dark": _darkness(prepared.assumptions),
        "is_converted": any(sentence.startswith(CONVERTED) for sentence in prepared.assumptions),
        "rows": layout.grid_height,
        "columns": layout.grid_width,
        "prefix": list(layout.prefix),
        "start": 0 if layout.prefix else middle,
        "layers": trace.layers,
        "heads": trace.heads,
        "windows": list(trace.windows),
        "rolls": has_rollouts(trace),
        "outliers": outliers(trace),
        "model": view.model,
        "step": view.step,
        "name": visible(name),
        "fit": view.fit or model.preprocessing.fit,
        "resolution": min(prepared.geometry.input_height, prepared.geometry.input_width),
        "predictions": predictions(analysis),
        "look": far_look(analysis, name),
        "flips": flips(analysis.model, analysis.trace.layout.token_count),
    }


def far_look(analysis: Analysis, name: str) -> dict[str, Any] | None:
    """The far look with which the page opens, and a sentence about it; None if there is none worth it."""
    look = far_look_worth_opening(analysis)
    if look is None:
        return None
    sentence = FINDINGS.get((name, look.layer, look.head, look.query), FINDING).format(f"{look.share:.0%}")
    return {**asdict(look), "sentence": sentence}


def flips(model: Model, token_count: int, quick: float = QUICK_SEARCH) -> str | None:
    """When the page searches for squares that change the answer: meanwhile, or on request; None if it cannot."""
    if not model.gives_probabilities or len(model.labels) < 2 or model.network.why_no_hiding:
        return None
    return "meanwhile" if 0 < (model.parameters or 0) * token_count <= quick else "on request"


def _darkness(assumptions: Iterable[str]) -> dict[str, Any] | None:
    """Of a dark picture, what says so, and the value of white that may be meant, if one is known."""
    found = ({"text": match[1], "white": match[2] and int(match[2])} for match in map(DARK.match, assumptions) if match)
    return next(found, None)


def outliers(trace: AttentionTrace) -> dict[str, Any] | None:
    """The patches of outlying norm, and a sentence with their number and the rule; None without norms."""
    if trace.norms is None:
        return None
    layout, rule, tokens = trace.layout, OutlierRule.of(norms_of_patches(trace)), outlier_patches(trace)
    caption = (
        f"{outlier_count(trace)}: norm above {digits(rule.threshold)} where the "
        f"tokens enter the last layer (the larger of {OUTLIER_RATIO:g} times the median of all patches and the median "
        f"plus {OUTLIER_DEVIATIONS:g} median absolute deviations)."
    )
    return {"patches": [list(layout.cell(token)) for token in tokens], "about": caption}


def predictions(analysis: Analysis) -> list[dict[str, Any]]:
    """The most probable classes, best first; empty for a model that gives none."""
    if not analysis.model.gives_probabilities:
        return []
    names, best = class_names(analysis.model.labels), analysis.predictions(MAX_PREDICTIONS)
    return [{"index": each.index, "label": names[each.index], "probability": each.probability} for each in best]


@cache
def examples() -> list[dict[str, Any]]:
    """The examples, with thumbnails as data URLs."""
    return [
        {
            "id": f"example:{name}",
            "url": _thumbnail(name),
            "name": name,
            "caption": CAPTIONS[name],
            "is_covered": name == COVERED,
        }
        for name in EXAMPLES
    ]


def _thumbnail(name: str) -> str:
    with Image.open(resources("assets") / name) as image:
        small = image.convert("RGB")
        small.thumbnail((THUMBNAIL_SIDE * 2, THUMBNAIL_SIDE))
    return f"data:image/webp;base64,{as_base64(as_webp(small))}"


@cache
def colours() -> dict[str, str]:
    """The colour tables, ``"value channel"`` bytes in base64, by name."""
    tables = {name: colour_table(name).round().astype(np.uint8).tobytes() for name in (*COLORMAPS, DIVERGING_COLORMAP)}
    return {name: as_base64(table) for name, table in tables.items()}
