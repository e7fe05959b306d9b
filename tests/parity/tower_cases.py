"""Vision towers inside other models of transformers, written by these models' own ``save_pretrained``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from tests.parity.case import Answer, Case, Reference, Size, randomised
from tests.reference_packages import transformers

VISION = {
    **{"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 32, "patch_size": 8},
    "intermediate_size": 96,
}
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
TEXT = {**VISION, **TOKENS, "vocab_size": 50}
LANGUAGE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 50}
SIZES: tuple[Size, ...] = ((32, 32), (48, 48), (24, 40))
Pick = Callable[[Any], torch.Tensor]


def pooled(found: Any) -> torch.Tensor:
    return found.pooler_output


def cls_of(found: Any) -> torch.Tensor:
    return found.last_hidden_state[:, 0]


def make(
    folder: Path,
    model: str,
    config: str,
    tower: str,
    pick: Pick,
    interpolate: bool = True,
    projection: str | None = None,
    **options: Any,
) -> Reference:
    """Write a whole model; the reference is the tower's own answer.

    Args:
        folder: where to.
        model, config: names of classes.
        tower: where the tower stands in the model; empty where it is all of it.
        pick: what of the tower's output vitviz shows.
        interpolate: whether the tower has to be asked to take images of other sizes.
        projection: where the projection of its output stands.
        options: of the configuration.
    """
    settings = getattr(transformers, config)(**options)
    settings._attn_implementation = "eager"
    network = randomised(getattr(transformers, model)(settings))
    network.save_pretrained(folder)
    inside = attrgetter(tower)(network) if tower else network
    project = attrgetter(projection)(network) if projection else torch.nn.Identity()

    def answer(pixels: torch.Tensor) -> Answer:
        keywords = {"interpolate_pos_encoding": True} if interpolate else {}
        found = inside(pixel_values=pixels, output_attentions=True, **keywords)
        return project(pick(found)), list(found.attentions)

    return Reference(folder, answer, inside)


def case(row: str, name: str, family: str, **options: Any) -> Case:
    return Case(f"transformers {row}", name, f"transformers-{family}", partial(make, **options), SIZES)


def beside_text(row: str, prefix: str, **options: Any) -> Case:
    """A descendant of CLIP; vitviz shows its image's features, projected."""
    parts = {"vision_config": VISION, "text_config": TEXT, "projection_dim": 24}
    options = {"model": f"{prefix}Model", "tower": "vision_model", "projection": "visual_projection", **options}
    return case(row, "beside its text tower", "clip", config=f"{prefix}Config", pick=pooled, **parts, **options)


MULTIMODAL = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96}
FLAVA = {
    "config": "FlavaConfig",
    "pick": pooled,
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
        pick=cls_of,
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
        pick=pooled,
        **VISION,
    ),
    case("FLAVA, image tower", "with the others", "flava", model="FlavaModel", tower="image_model", **FLAVA),
    case("FLAVA, image tower", "pretraining", "flava", model="FlavaForPreTraining", tower="flava.image_model", **FLAVA),
)
