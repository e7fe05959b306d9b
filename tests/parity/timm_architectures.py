"""Write down what timm's names of Vision Transformers mean: ``python -m tests.parity.timm_architectures``.

The table (``vitviz/weights/data/timm_architectures.json``) has for every architecture whose weights have the keys of
vitviz's timm families the class, the arguments with which timm makes it, a digest of its tensors' shapes, the numbers
of classes of its published weights, and how their pictures are prepared. A test compares it with the timm that is
installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
from timm.data import resolve_data_config
from timm.models import (
    beit,
    cait,
    deit,
    eva,
    qwen3_vit,
    vision_transformer,
    vision_transformer_hybrid,
    vision_transformer_relpos,
    vision_transformer_sam,
)
from timm.models._registry import _model_default_cfgs, _model_entrypoints

from tests.reference_packages import timm
from vitviz.weights.families.timm import SIGNATURES
from vitviz.weights.families.timm_architectures import DATA, USUAL_CFG, digest

MODULES = (
    *(vision_transformer, deit, eva, vision_transformer_hybrid, vision_transformer_relpos, vision_transformer_sam),
    *(beit, cait, qwen3_vit),
)
# Arguments that say how a model is trained or loaded, not what it computes.
TRAINING = ("weight_init", "fix_init", "init_values", "head_init_scale", "pretrained_cfg", "pretrained_cfg_overlay")


LOADING = ("pretrained_filter_fn", "pretrained_strict", "feature_cfg", "cache_dir", "kwargs_filter")
# What other sizes of one architecture differ in.
SIZES = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio")


class Recorded(Exception):
    """Ends the making of a model whose arguments are known."""


@cache
def kind_of(name: str) -> str:
    """What timm builds under a name, whatever its sizes: the class and all other arguments of the network."""

    def build(cls: type, variant: str, pretrained: bool, **keywords: Any) -> torch.nn.Module:
        kept = {key: plain(value) for key, value in keywords.items() if key not in (*LOADING, *TRAINING, *SIZES)}
        # Of layer scale, the starting value is one that training changes.
        kept["layer scale"] = keywords.get("init_values") is not None
        raise Recorded(f"{cls.__name__} {json.dumps(kept, sort_keys=True, default=str)}")

    with ExitStack() as patches:
        for module in MODULES:
            patches.enter_context(mock.patch.object(module, "build_model_with_cfg", build))
        try:
            _model_entrypoints[name]()
        except Recorded as recorded:
            return str(recorded)
    raise AssertionError(f"{name}: timm makes it in a way of its own")


def plain(value: Any) -> Any:
    """An argument as JSON: a class by its name, with the arguments that are bound to it."""
    if isinstance(value, partial):
        bound = ", ".join(f"{name}={plain(each)}" for name, each in value.keywords.items())
        return f"{plain(value.func)}({bound})"
    if callable(value):
        module, name = value.__module__.partition(".")[0], getattr(value, "__name__", type(value).__name__)
        return f"{module}.{name}"
    return list(value) if isinstance(value, tuple) else value


def describe(name: str) -> dict[str, Any] | None:
    """The row of an architecture; None where its weights have other keys."""
    recorded: dict[str, Any] = {}

    def build(cls: type, variant: str, pretrained: bool, **keywords: Any) -> torch.nn.Module:
        recorded.update(cls=cls, keywords=dict(keywords))
        return original(cls, variant, pretrained, **keywords)

    original = timm.models._builder.build_model_with_cfg
    patches = [mock.patch.object(module, "build_model_with_cfg", build) for module in MODULES]
    for patch in patches:
        patch.start()
    try:
        with torch.device("meta"):
            model = timm.create_model(name)
    finally:
        for patch in patches:
            patch.stop()
    whole = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    anchor = SIGNATURES[0][0]
    prefix = next((key[: -len(anchor)] for key in whole if key.endswith(anchor)), "")
    shapes = {key[len(prefix) :]: shape for key, shape in whole.items() if key.startswith(prefix)}
    if not recorded or not any(all(key in shapes for key in signature) for signature in SIGNATURES):
        return None
    arguments = {
        key: plain(value)
        for key, value in recorded["keywords"].items()
        if key not in (*LOADING, *TRAINING) and value is not None
    }
    classes = {cfg.num_classes for cfg in _model_default_cfgs[name].cfgs.values() if cfg.has_weights}
    row = {"class": recorded["cls"].__name__, "arguments": arguments, "shapes": digest(shapes)}
    return {**row, **({"classes": sorted(classes)} if classes else {}), **describe_pictures(name)}


def describe_pictures(name: str) -> dict[str, Any]:
    """How timm prepares pictures, where that differs from its usual way: of the default weights, and of other tags."""
    own = {
        tag: {entry: plain(config[entry]) for entry in USUAL_CFG if config[entry] != USUAL_CFG[entry]}
        for tag, cfg in _model_default_cfgs[name].cfgs.items()
        for config in [resolve_data_config(pretrained_cfg=cfg.to_dict())]
    }
    usual = own[_model_default_cfgs[name].tags[0]]
    tags = {tag: cfg for tag, cfg in own.items() if cfg != usual}
    return {key: value for key, value in {"pretrained_cfg": usual, "tags": tags}.items() if value}


def names() -> Iterator[str]:
    """timm's architectures in the modules of the table."""
    places = {module.__name__ for module in MODULES}
    for name in timm.list_models():
        if _model_entrypoints[name].__module__ in places:
            yield name


def main() -> None:
    rows = {name: row for name in names() if (row := describe(name)) is not None}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    DATA.write_text("{\n" + lines + "\n}\n")
    print(f"{len(rows)} architectures of timm {timm.__version__}")


if __name__ == "__main__":
    main()
