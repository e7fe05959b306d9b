"""An unknown attribute is an AttributeError that says where the name is, or which name was probably meant."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitviz.errors.messages import nearest

# Where names are that something lacks, as code and the class or module that has them.
_OF_MODEL = (
    ("model.network", "vitviz.models.given.GivenNetwork"),
    ("model.network", "vitviz.VisionTransformer"),
    ("model.network.config", "vitviz.ViTConfig"),
    ("model.preprocessing", "vitviz.Preprocessing"),
)
_MODULES = ("attribution", "evaluation", "evaluation.probes", "datasets", "metrics", "visualization", "attention.trace")
PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    "vitviz": (
        ("vitviz.analyze(image, model)", "vitviz.Analysis"),
        ("vitviz.load()", "vitviz.Model"),
        *((f"vitviz.{name}", f"vitviz.{name}") for name in _MODULES),
        ("vitviz.analyze(image, model).rollout()", "vitviz.Heatmap"),
    ),
    "Model": (
        ("vitviz.analyze(image, model)", "vitviz.Analysis"),
        *_OF_MODEL,
        ("vitviz", "vitviz"),
        ("vitviz.analyze(image, model).rollout()", "vitviz.Heatmap"),
    ),
    "Analysis": (
        ("analysis.trace", "vitviz.AttentionTrace"),
        ("analysis.trace.layout", "vitviz.TokenLayout"),
        ("analysis.prepared", "vitviz.images.preprocessing.PreparedImage"),
        ("analysis.model", "vitviz.Model"),
        *((f"analysis.{code}", place) for code, place in _OF_MODEL),
        ("analysis.rollout()", "vitviz.Heatmap"),
        ("vitviz", "vitviz"),
    ),
    "Heatmap": (
        ("heatmap.token_map", "vitviz.TokenMap"),
        ("heatmap.values", "torch.Tensor"),
        ("analysis", "vitviz.Analysis"),
    ),
    "Sheet": (("sheet[layer][head]", "vitviz.Heatmap"),),
    "AttentionTrace": (("trace.layout", "vitviz.TokenLayout"), ("vitviz.attribution", "vitviz.attribution")),
}
# The words of other packages for attributes and parameters of vitviz.
WORDS = {
    word: name
    for name, words in {
        "attention": "attn attention_map get_attention",
        "attention_sheet": "attentions attention_maps attention_weights get_last_selfattention",
        "colormap": "cmap",
        "count": "k top_k",
        "depth": "blocks layers num_layers n_layers num_hidden_layers",
        "every": "interval frequency freq every_n_steps log_every_n_steps",
        "high": "vmax",
        "figure": "plot imshow draw visualize visualise",
        "label": "name class_name",
        "labels": "classes class_names id2label",
        "load": "from_pretrained create_model load_model",
        "low": "vmin",
        "map": "attribute explain heatmap",
        "opacity": "alpha transparency",
        "open_image": "imread load_image read_image",
        "precision": "dtype torch_dtype",
        "predictions": "predict predict_proba probabilities probs softmax topk scores",
        "preprocessing": "transform transforms processor image_processor",
        "probability": "score prob confidence",
        "query": "token patch",
        "resolution": "size image_size",
        "relevance": "transmm chefer",
        "source": "model pretrained model_name",
        "target": "category class_idx class_index targets target_category",
    }.items()
    for word in words.split()
}
ADVICE = {
    ("vitviz", "compare"): "expected b.rollout() - a.rollout(), the difference of two maps, "
    "or vitviz.evaluation.compare(analysis), the methods on one picture",
    ("Model", "cpu"): "expected model.to('cpu')",
    ("Model", "cuda"): "expected model.to('cuda')",
    ("Model", "eval"): "its network is in evaluation mode already; vitviz.analyze(image, model) runs it",
    ("Model", "save"): "expected vitviz.save_checkpoint(path, model)",
    ("Model", "train"): "a model is for analysis, in evaluation mode; model.network.train() changes its network",
}
# How similar a name must be to be suggested, in [0, 1]; one of the owner's own comes before an equal one elsewhere.
SIMILARITY, SIMILARITY_OF_OWN = 0.75, 0.85


class AttributeAdvice:
    """Base of a class whose unknown attributes are errors that say where the name is; hidden from type checkers."""

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
    if (kind, name) in ADVICE:
        return f": {ADVICE[kind, name]}"
    meant, own = WORDS.get(name, name), _names(owner)
    close = meant if meant in own else None if name in WORDS else nearest(name, own, SIMILARITY_OF_OWN)
    if close:
        return f"; did you mean {close!r}?"
    places = [(code, _find(place)) for code, place in PLACES.get(kind, ())]
    for word in (name, meant):
        for code, place in places:
            if word in _names(place):
                return f": expected {_code(code, place, word)}"
    for code, place in (("", owner), *places):
        if close := nearest(name, _names(place), SIMILARITY):
            return f"; did you mean {_code(code, place, close) if code else repr(close)}?"
    return ""


def _find(place: str) -> Any:
    module, _, name = place.rpartition(".")
    found = import_module(module or place)
    return getattr(found, name) if module else found


def _names(place: Any) -> set[str]:
    """The public names of a class, an object or a module."""
    names = {*getattr(place, "__all__", dir(place)), *getattr(place, "__dataclass_fields__", ())}
    return {name for name in names if not name.startswith("_")}


def _code(code: str, place: Any, name: str) -> str:
    return f"{code}.{name}{'(…)' if callable(getattr(place, name, None)) else ''}"
