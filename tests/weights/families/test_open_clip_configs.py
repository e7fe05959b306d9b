"""Every entry of an open_clip configuration: used as the package uses it, known to change nothing, or refused."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.case import randomised
from tests.parity.other_cases import TEXT, VISION
from tests.reference_packages import open_clip
from tests.support.reading import read_checkpoint
from vitviz.errors.kinds import CheckpointError
from vitviz.weights.families.published import published_rows

pytestmark = pytest.mark.parity

EXACT = 1e-5
PIXELS = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
WHOLE = {"embed_dim": 24, "text_cfg": TEXT, "quick_gelu": False}
VALUES: dict[str, list[Any]] = {
    "layers": [1, 3, [1, 1, 1, 1], 0],
    "width": [128, 32],
    "head_width": [8, 64, 24, 20, 65],
    "mlp_ratio": [2.0, 4],
    "patch_size": [4, 16, [8, 8], [4, 16]],
    "image_size": [16, 64, [32, 32], [16, 64]],
    "ls_init_value": [0.1, None],
    "patch_dropout": [0.5],
    "attentional_pool": [True, "parallel"],
    "attn_pooler_queries": [4],
    "attn_pooler_heads": [2],
    "no_ln_pre": [True],
    "pos_embed_type": ["sin_cos_2d", "other"],
    "final_ln_after_pool": [True],
    "pool_type": ["avg", "none"],
    "output_tokens": [True],
    "act_kwargs": [{}, {"approximate": "tanh"}, {"approximate": "none"}, {"other": 1}],
    "norm_kwargs": [{}, {"eps": 1e-3}, {"elementwise_affine": False}, {"bias": False}],
    "block_type": ["default", "custom", "other"],
    "qk_norm": [True],
    "scaled_cosine_attn": [True],
    "scale_heads": [True],
    "scale_attn_inner": [True],
    "scale_attn": [True],
    "scale_fc": [True],
    "timm_model_name": ["vit_tiny_patch16_224", ""],
    "timm_model_pretrained": [True],
    "timm_pool": ["token"],
    "timm_proj": [""],
    "timm_proj_bias": [True],
    "timm_drop": [0.1],
    "timm_drop_path": [0.1],
}
OF_THE_WHOLE: dict[str, list[Any]] = {
    "embed_dim": [32],
    "quick_gelu": [True],
    "init_logit_scale": [1.0],
    "init_logit_bias": [1.0],
    "nonscalar_logit_scale": [True],
    "output_dict": [True],
    "cast_dtype": ["float16"],
    "unheard_of": [1],
}


def test_every_entry_of_the_class_is_tried() -> None:
    assert {field.name for field in fields(open_clip.CLIPVisionCfg)} == VALUES.keys()
    whole = {*inspect.signature(open_clip.CLIP.__init__).parameters} - {"self", "vision_cfg", "text_cfg"}
    assert whole == OF_THE_WHOLE.keys() - {"unheard_of"}


def configurations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every entry with each of its values, and some that only matter together."""
    for name, values in VALUES.items():
        for value in values:
            yield name, {**WHOLE, "vision_cfg": {**VISION, name: value}}
    for name, values in OF_THE_WHOLE.items():
        for value in values:
            yield name, {**WHOLE, "vision_cfg": VISION, name: value}
    yield "both", {**WHOLE, "quick_gelu": True, "vision_cfg": {**VISION, "act_kwargs": {"approximate": "tanh"}}}
    yield "norm after the mean", {**WHOLE, "vision_cfg": {**VISION, "pool_type": "avg", "final_ln_after_pool": True}}
    said = {"elementwise_affine": True, "bias": True, "eps": 1e-3}
    yield "stated norms", {**WHOLE, "vision_cfg": {**VISION, "norm_kwargs": said}}
    clipa = {**VISION, "no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}
    yield "CLIPA", {**WHOLE, "vision_cfg": clipa}
    for name in ("patch_size", "head_width", "layers", "width", "image_size"):
        yield f"no {name}", {**WHOLE, "vision_cfg": {key: value for key, value in VISION.items() if key != name}}


CONFIGURATIONS = list(configurations())


def test_an_entry_changes_what_it_changes_in_the_package_or_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = randomised(open_clip.CLIP(**WHOLE, vision_cfg=VISION))
    kept = network.state_dict()
    torch.save(kept, tmp_path / "open_clip_pytorch_model.bin")
    with torch.inference_mode():
        before = network.visual(PIXELS)
    used, refusals = set(), {}
    for name, config in CONFIGURATIONS:
        (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
        try:
            found = read_checkpoint(tmp_path).model.network
        except CheckpointError as error:
            refusals[name] = str(error)
            continue
        pixels = PIXELS.reshape(1, 3, found.config.image_height, found.config.image_width)
        try:
            theirs = open_clip.CLIP(**config).eval()
            theirs.load_state_dict(kept)
            with torch.inference_mode():
                answer = theirs.visual(pixels)
        except Exception:
            continue
        answer = answer[0] if isinstance(answer, tuple) else answer
        assert float((found(pixels) - answer).abs().max()) < EXACT, f"{name}: {config}"
        if answer.shape != before.shape or float((answer - before).abs().max()) > 10 * EXACT:
            used.add(name)
    alone = {"head_width", "no head_width", "quick_gelu", "pool_type", "act_kwargs", "norm_kwargs"}
    assert used - {"image_size"} == {*alone, "norm after the mean", "stated norms"}
    assert not any("\n" in sentence for sentence in refusals.values())
    for name in ("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn", "scale_fc", "unheard_of"):
        assert re.search(rf"open_clip_config\.json.*{name} = ", refusals[name])
    assert "bias = " in refusals["norm_kwargs"] and "attentional_pool = " in refusals["attentional_pool"]


def test_layers_that_vitviz_has_are_read_whatever_their_blocks_are_called(tmp_path: Path) -> None:
    config = {**WHOLE, "vision_cfg": {**VISION, "block_type": "custom", "mlp_ratio": 2.5, "ls_init_value": 0.3}}
    network = randomised(open_clip.CLIP(**config))
    torch.save(network.state_dict(), tmp_path / "open_clip_pytorch_model.bin")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    found = read_checkpoint(tmp_path).model.network
    assert float((found(PIXELS) - network.visual(PIXELS)).abs().max()) < EXACT


def test_published_towers_are_those_that_the_package_describes() -> None:
    for name, row in {row.name.partition(" (")[0]: row for row in published_rows("open_clip")}.items():
        config = open_clip.get_model_config(name)
        vision = open_clip.CLIPVisionCfg(**config["vision_cfg"])
        shape = (vision.width, vision.layers, vision.width // vision.head_width, vision.patch_size)
        assert (row.width, row.depth, row.heads, row.patch) == shape
        assert row.grid == vision.image_size // vision.patch_size
    every = [name for name in open_clip.list_models() if "vision_cfg" in open_clip.get_model_config(name)]
    for name in every:
        config = open_clip.get_model_config(name)
        vision = open_clip.CLIPVisionCfg(**config["vision_cfg"])
        if vision.timm_model_name or not isinstance(vision.layers, int) or vision.attentional_pool:
            continue
        shape = (vision.width, vision.layers, vision.patch_size, vision.image_size // vision.patch_size)
        normed = not vision.no_ln_pre
        rows = [row for row in published_rows("open_clip") if row.pre_norm == normed]
        same = [row for row in rows if (row.width, row.depth, row.patch, row.grid) == shape]
        activation = "quick gelu" if config.get("quick_gelu") else "gelu"
        pooling = {"tok": "cls", "avg": "mean"}[vision.pool_type]
        overrides = {"activation": activation, "pooling": pooling}
        known = [row for row in same if {name: row.facts[name] for name in overrides} == overrides]
        # A shape that is assumed must be assumed of nothing that the package has otherwise.
        assert not same or known, name
