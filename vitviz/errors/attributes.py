"""An unknown attribute is an AttributeError that says what to write instead, or which name was probably meant.

Every code that a message proposes runs as it is, where the names in it are defined; a test pastes all of them.
"""

from __future__ import annotations

from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from vitviz.errors.messages import did_you_mean
from vitviz.errors.words import WORDS

ROLLOUT, SAVED = "vitviz.analyze(image, model).rollout()", "vitviz.save_checkpoint('model.safetensors', model)"
# What to write for words that are no other name of one attribute, by the class, or the module, that lacks them.
INSTEAD: dict[str, dict[str, str]] = {
    "vitviz": {
        "vitviz.evaluation.compare(analysis)": "compare",
        "vitviz.explore(image, model)": "app page show_app",
        "vitviz.load(device='cpu')": "device set_device cuda",
        "vitviz.list_models()": "hub",
        f"{ROLLOUT}.figure()": "plot imshow visualize visualise draw",
        f"{ROLLOUT}.save('map.png')": "save",
        "vitviz.analyze(image, model).prepared.pixels": "preprocess",
    },
    "Model": {
        "model.to('cpu')": "cpu",
        "model.to('cuda')": "cuda",
        "len(model.labels)": "num_classes num_labels n_classes",
        "model.network.layers": "blocks layers encoder",
        "model.network.config.patch_height": "patch_size",
        "model.network.config.image_height": "image_size resolution input_size",
        "model.network.train()": "train",
        "model.card": "licence license info metadata",
        "vitviz.analyze(image, model)": "eval analyze forward run",
        "vitviz.load(precision='bfloat16')": "half float16 bfloat16",
        SAVED: "save save_pretrained",
    },
    "Analysis": {
        "analysis.trace.weights(-1)": "matrix matrices attention_matrix attentions attention_weights "
        "get_last_selfattention",
        "analysis.trace.layers": "layers num_layers depth n_layers",
        "analysis.trace.layout": "tokens patches grid num_patches",
        "analysis.attention(layer=-1)": "layer last_layer",
        "analysis.attention(head=0)": "head",
        "analysis.attention(query='cls')": "cls cls_attention",
        "analysis.prepared.pixels": "input inputs pixel_values",
        "analysis.rollout().figure()": "plot imshow draw visualize visualise",
        "analysis.rollout().save('map.png')": "save savefig",
        "analysis.faithfulness({'rollout': analysis.rollout()})": "deletion insertion",
        "vitviz.evaluation.compare(analysis)": "compare",
        "vitviz.evaluation.probes.probe(analysis, 'attention_entropy')": "probe probes entropy",
        "analysis.predictions()": "probability",
        "analysis.features()": "embeddings hidden_states patch_tokens last_hidden_state",
        "vitviz.explore(analysis)": "explore app",
    },
    "Predictions": {"pandas.DataFrame(predictions)": "to_pandas to_df dataframe DataFrame df"},
    "Heatmap": {
        "heatmap.save('map.png')": "save_png savefig write export to_file save_image",
        "heatmap.resized(224)": "resize rescale",
        "heatmap.overlay()": "to_pil pil to_image as_image blend",
        "heatmap.values": "tensor data to_tensor map",
        "heatmap.numpy()": "array",
        "heatmap.values > 0.5": "threshold mask binarize binarise",
        "pandas.DataFrame(heatmap)": "to_csv to_pandas to_df dataframe DataFrame df",
        "heatmap.figure()": "legend colorbar",
        "heatmap.pixels(smooth=True)": "upsample upsampled interpolate smooth",
        "heatmap.overlay(vitviz.Style(scale='robust'))": "normalize normalise normalized",
        "heatmap.overlay(vitviz.Style(colormap='viridis'))": "colormap cmap style",
    },
    "Sheet": {"sheet.figure()": "plot show imshow overlay", "sheet[-1][0].numpy()": "numpy values shape"},
    "AttentionTrace": {
        "trace.weights(-1)": "matrix matrices attention_matrix attentions attention_weights attention attn maps",
        "trace.weights(-1).numpy()": "numpy",
        "trace.layers": "num_layers depth n_layers",
        "trace.layout": "tokens shape grid patches",
    },
}
# Where names are that something lacks, as code and the class or module that has them.
_OF_MODEL = (
    ("model.network", "vitviz.models.given.GivenNetwork"),
    ("model.network", "vitviz.VisionTransformer"),
    ("model.network.config", "vitviz.ViTConfig"),
    ("model.preprocessing", "vitviz.Preprocessing"),
)
_MODULES = ("attribution", "evaluation", "evaluation.probes", "datasets", "metrics", "visualization")
PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    "vitviz": (
        ("vitviz.analyze(image, model)", "vitviz.Analysis"),
        (ROLLOUT, "vitviz.Heatmap"),
        *((f"vitviz.{name}", f"vitviz.{name}") for name in _MODULES),
    ),
    "Model": (("vitviz.analyze(image, model)", "vitviz.Analysis"), *_OF_MODEL, (ROLLOUT, "vitviz.Heatmap")),
    "Analysis": (
        ("analysis.trace", "vitviz.AttentionTrace"),
        ("analysis.trace.layout", "vitviz.TokenLayout"),
        ("analysis.prepared", "vitviz.images.preprocessing.PreparedImage"),
        ("analysis.model", "vitviz.Model"),
        *((f"analysis.{code}", place) for code, place in _OF_MODEL),
        ("analysis.rollout()", "vitviz.Heatmap"),
    ),
    "Predictions": (("predictions[0]", "vitviz.Prediction"),),
    "Heatmap": (
        ("heatmap.token_map", "vitviz.TokenMap"),
        ("heatmap.values", "torch.Tensor"),
        ("analysis", "vitviz.Analysis"),
    ),
    "Sheet": (("sheet[-1][0]", "vitviz.Heatmap"),),
    "AttentionTrace": (("trace.layout", "vitviz.TokenLayout"), ("vitviz.attribution", "vitviz.attribution")),
}
# Arguments of the calls that messages propose, by the parameters that a function needs.
SAMPLES = {
    **{name: name for name in ("analysis", "image", "model", "trace")},
    **{"layer": "-1", "method": "'rollout'", "path": "'map.png'", "query": "'cls'"},
}
VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
# How similar a name must be to be suggested, in [0, 1].
SIMILARITY = 0.75


class AttributeAdvice:
    """Base of a class whose unknown attributes are errors that say what to write; hidden from type checkers."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                # A property raised an AttributeError: raise that one.
                return object.__getattribute__(self, name)
            raise unknown_attribute(self, type(self).__name__, name)


def unknown_attribute(owner: object, kind: str, name: str) -> AttributeError:
    """The error for a name that an owner lacks; ``kind`` is the name of its class, or ``"vitviz"``."""
    subject = "module 'vitviz'" if kind == "vitviz" else f"{kind!r} object"
    advice = "" if name.startswith("_") else _advice(owner, kind, name)
    # Without the owner, since Python would append a suggestion of its own.
    return AttributeError(f"{subject} has no attribute {name!r}{advice}", name=name, obj=None)


def _advice(owner: object, kind: str, name: str) -> str:
    for code, words in INSTEAD.get(kind, {}).items():
        if name in words.split():
            return f": expected {code}"
    own, meant = _names(owner), WORDS.get(name, name)
    # Exactly this name elsewhere comes before a similar one here.
    for word in (meant, name) if meant not in own else ():
        for code, place in PLACES.get(kind, ()):
            if word in _names(_find(place)):
                return f": expected {code}.{word}{_call(getattr(_find(place), word, None))}"
    return did_you_mean(name, own, SIMILARITY)


def _find(place: str) -> Any:
    module, _, name = place.rpartition(".")
    found = import_module(module or place)
    return getattr(found, name) if module else found


def _names(place: Any) -> set[str]:
    """The public names of a class, an object or a module."""
    names = {*getattr(place, "__all__", dir(place)), *getattr(place, "__dataclass_fields__", ())}
    return {name for name in names if not name.startswith("_")}


def _call(function: Any) -> str:
    """The parentheses of a call with all that a function needs; nothing where that is not known."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in VARIABLE]
    is_known = {*needed} <= {"self", *SAMPLES} and not isinstance(function, type)
    return f"({', '.join(SAMPLES[name] for name in needed if name != 'self')})" if is_known else ""
