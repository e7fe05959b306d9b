"""Write down what timm's names of Vision Transformers mean: ``python -m tests.parity.timm_architectures``.

The table (``vitviz/weights/data/timm_architectures.json``) has for every architecture whose weights have the keys of
vitviz's timm family a digest of its tensors' shapes, the facts that the tensors do not tell, where vitviz's own network
with them has its numbers, the numbers of classes of its published weights, and how their pictures are prepared. A test
compares it with the timm that is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from timm.data import resolve_data_config
from timm.models._registry import _model_default_cfgs, _model_entrypoints
from torch import nn

from tests.parity.case import randomised
from tests.parity.random_draws import silent
from tests.reference_packages import timm
from vitviz.errors.kinds import VitvizError
from vitviz.weights.conversion.assemble import assemble, infer_config
from vitviz.weights.conversion.canonical import MatchedCheckpoint
from vitviz.weights.families.timm import SIGNATURE, TIMM
from vitviz.weights.families.timm_architectures import DATA, USUAL_CFG, digest
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.overrides import NOTHING
from vitviz.weights.own_network import facts_of_timm
from vitviz.weights.recognize import recognize

MODULES = (
    *("vision_transformer", "deit", "eva", "vision_transformer_hybrid", "vision_transformer_relpos"),
    *("vision_transformer_sam", "beit", "cait", "qwen3_vit"),
)
# Every kind of block is made as small as this; patches keep their size.
SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2}


def describe(name: str) -> dict[str, Any] | None:
    """The row of an architecture; None where its weights have other keys."""
    with torch.device("meta"):
        model = timm.create_model(name)
    whole = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    anchor = SIGNATURE[0]
    prefix = next((key[: -len(anchor)] for key in whole if key.endswith(anchor)), "")
    shapes = {key[len(prefix) :]: shape for key, shape in whole.items() if key.startswith(prefix)}
    if not set(SIGNATURE) <= shapes.keys():
        return None
    facts = {"facts": facts_of(model)} if is_own(name, prefix) else {}
    classes = {cfg.num_classes for cfg in _model_default_cfgs[name].cfgs.values() if cfg.has_weights}
    row = {"shapes": digest(shapes), **facts, **({"classes": sorted(classes)} if classes else {})}
    found: dict[str, Any] = json.loads(json.dumps({**row, **describe_pictures(name)}))
    return found


def facts_of(model: Any) -> dict[str, Any]:
    """What the tensors of a model do not tell, and their sizes, which those of a file have to be."""
    block, patch = model.blocks[0], model.patch_embed.patch_size
    hidden = block.mlp.fc2.in_features
    stated = {
        **{"width": model.embed_dim, "depth": len(model.blocks), "channels": model.patch_embed.proj.in_channels},
        **{"patch_height": patch[0], "patch_width": patch[1]},
        "query_key_norm": not isinstance(block.attn.q_norm, nn.Identity),
        **{"mlp_width": hidden, "pre_norm": not isinstance(model.norm_pre, nn.Identity)},
        **{"gated_mlp": hidden != block.mlp.fc1.out_features, "cls_token": model.cls_token is not None},
        "register_tokens": model.num_reg_tokens,
    }
    return {**facts_of_timm(model), "any_size": model.dynamic_img_size, "stated": stated}


def is_own(name: str, prefix: str) -> bool:
    """Whether vitviz's own network with a model's facts has its numbers."""
    if prefix:
        return False
    try:
        with silent():
            patch = timm.create_model(name, depth=1).patch_embed.patch_size
            sides = 3 * patch[0], 3 * patch[1]
            model = randomised(timm.create_model(name, **SMALL, img_size=sides))
            facts = facts_of(model)
    # The class may have no such argument, and its model no such part.
    except (TypeError, AttributeError, KeyError, AssertionError, RuntimeError):
        return False

    def known(_: MatchedCheckpoint) -> dict[str, Any]:
        return facts

    file = WeightFile(name, {"": dict(model.state_dict())}, Path(name))
    pixels = torch.randn(2, 3, *sides)
    try:
        checkpoint = recognize(file, Beside(), NOTHING, (replace(TIMM, facts=known),))
        checkpoint.settle(facts)
        own = assemble(checkpoint, infer_config(checkpoint))
    except VitvizError:
        return False
    with torch.inference_mode():
        found, expected = own(pixels), model(pixels)
    return found.shape == expected.shape and bool(torch.allclose(found, expected, rtol=1e-4, atol=3e-5))


def describe_pictures(name: str) -> dict[str, Any]:
    """How timm prepares pictures, where that differs from its usual way: of the default weights, and of other tags."""
    own = {
        tag: {entry: config[entry] for entry in USUAL_CFG if config[entry] != USUAL_CFG[entry]}
        for tag, cfg in _model_default_cfgs[name].cfgs.items()
        for config in [resolve_data_config(pretrained_cfg=cfg.to_dict())]
    }
    usual = own[_model_default_cfgs[name].tags[0]]
    tags = {tag: cfg for tag, cfg in own.items() if cfg != usual}
    return {key: value for key, value in {"pretrained_cfg": usual, "tags": tags}.items() if value}


def names() -> Iterator[str]:
    """timm's architectures in the modules of the table."""
    places = {f"timm.models.{module}" for module in MODULES}
    for name in timm.list_models():
        if _model_entrypoints[name].__module__ in places:
            yield name


def main() -> None:
    rows = {name: row for name in names() if (row := describe(name)) is not None}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    DATA.write_text("{\n" + lines + "\n}\n")
    print(f"{len(rows)} architectures of timm {timm.__version__}, {sum('facts' in row for row in rows.values())} own")


if __name__ == "__main__":
    main()
