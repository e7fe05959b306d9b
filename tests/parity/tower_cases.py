"""Vision towers inside other models of transformers, written by these models' own ``save_pretrained``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.parity.case import Case, Reference, Size, randomised
from tests.parity.transformers_cases import answer_by, cls_of
from tests.reference_packages import transformers

VISION = {
    **{"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 32, "patch_size": 8},
    "intermediate_size": 96,
}
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
TEXT = {**VISION, **TOKENS, "vocab_size": 50}
LANGUAGE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 50}
SIZES: tuple[Size, ...] = ((32, 32), (48, 48), (24, 40))


def make(
    folder: Path,
    model: str,
    config: str,
    tower: str,
    projection: str | None = None,
    output: Callable[[torch.Tensor], torch.Tensor] | None = None,
    **options: Any,
) -> Reference:
    """Write a whole model; the reference is the tower's own answer.

    Args:
        folder: where to.
        model, config: names of classes.
        tower: where the tower stands in the model; empty where it is all of it.
        projection: where the projection of its output stands.
        output: what of the tower's tokens vitviz shows, where it has no output.
        options: of the configuration.
    """
    settings = getattr(transformers, config)(**options)
    settings._attn_implementation = "eager"
    network = randomised(getattr(transformers, model)(settings))
    network.save_pretrained(folder)
    inside, project = network.get_submodule(tower), network.get_submodule(projection) if projection else None
    return Reference(folder, answer_by(inside, output, project), inside)


def case(row: str, name: str, family: str, **options: Any) -> Case:
    return Case(f"transformers {row}", name, f"transformers-{family}", partial(make, **options), SIZES)


def beside_text(row: str, prefix: str, **options: Any) -> Case:
    """A descendant of CLIP; vitviz shows its image's features, projected."""
    parts = {"vision_config": VISION, "text_config": TEXT, "projection_dim": 24}
    options = {"model": f"{prefix}Model", "tower": "vision_model", "projection": "visual_projection", **options}
    return case(row, "beside its text tower", "clip", config=f"{prefix}Config", **parts, **options)


MULTIMODAL = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96}
FLAVA = {
    "config": "FlavaConfig",
    "image_config": VISION,
    "text_config": TEXT,
    "multimodal_config": MULTIMODAL,
    "image_codebook_config": {"hidden_size": 16, "vocab_size": 32, "num_blocks_per_group": 1},
    "hidden_size": 64,
    "projection_dim": 24,
}

CASES = (
    beside_text("MetaCLIP 2", "MetaClip2"),
    beside_text("Chinese-CLIP", "ChineseCLIP"),
    beside_text("AltCLIP", "AltCLIP"),
    beside_text(
        "CLIPSeg",
        "CLIPSeg",
        model="CLIPSegForImageSegmentation",
        tower="clip.vision_model",
        projection="clip.visual_projection",
        extract_layers=[0],
        reduce_dim=16,
        decoder_intermediate_size=32,
    ),
    case(
        "GIT",
        "tower",
        "clip",
        model="GitForCausalLM",
        config="GitConfig",
        tower="git.image_encoder",
        output=cls_of,
        vision_config=VISION,
        **LANGUAGE,
        **TOKENS,
        num_attention_heads=2,
    ),
    case(
        "FLAVA, image tower",
        "alone",
        "flava",
        model="FlavaImageModel",
        config="FlavaImageConfig",
        tower="",
        **VISION,
    ),
    case("FLAVA, image tower", "with the others", "flava", model="FlavaModel", tower="image_model", **FLAVA),
    case("FLAVA, image tower", "pretraining", "flava", model="FlavaForPreTraining", tower="flava.image_model", **FLAVA),
)
