"""Models of transformers, written by their own ``save_pretrained``; all but plain ViTs are watched."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.parity.case import Case, Reference, Size, randomised
from tests.parity.package_answers import Answer, of_transformers
from tests.reference_packages import transformers

SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
MLP = {"intermediate_size": 96}
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
VISION = {**SMALL, **MLP}
TEXT = {**VISION, **TOKENS, "vocab_size": 50}
SIZES: tuple[Size, ...] = ((32, 32), (48, 48), (24, 40))


def make(
    folder: Path,
    model: str,
    config: str,
    single: bool = True,
    tower: str = "",
    projection: str = "",
    is_whole: bool = False,
    **options: Any,
) -> Reference:
    """Write a model; the reference is the answer of its tower.

    Args:
        folder: where to.
        model, config: names of classes.
        single: whether it is one file.
        tower: where the tower stands in the model; empty where it is all of it.
        projection: where the projection of its output stands; empty for none.
        is_whole: whether the configuration has several parts, whose sizes are all in the options.
        options: of the configuration.
    """
    sizes = {} if is_whole else {**SMALL, **(MLP if "Dinov2" not in config else {})}
    settings = getattr(transformers, config)(**{**sizes, **options})
    settings._attn_implementation = "eager"
    network = randomised(getattr(transformers, model)(settings))
    network.save_pretrained(folder, **({} if single else {"max_shard_size": "100KB"}))
    inside, project = network.get_submodule(tower), network.get_submodule(projection) if projection else None

    def answer(pixels: torch.Tensor) -> Answer:
        return of_transformers(inside, pixels, project)

    return Reference(folder, answer, inside)


def plain(name: str, model: str, channels: int = 3, **options: Any) -> Case:
    """A ViT, which opens in vitviz's own network."""
    made = partial(make, model=model, config="ViTConfig", num_channels=channels, **options)
    return Case("transformers ViT", name, "transformers-vit", made, SIZES, {}, channels)


def watched(
    row: str, name: str, normalisation: str, model: str, config: str, sizes: tuple[Size, ...] = SIZES, **options: Any
) -> Case:
    made = partial(make, model=model, config=config, **options)
    return Case(f"transformers {row}", name, "watched by transformers", made, sizes, {"normalisation": normalisation})


def beside_text(row: str, prefix: str, name: str = "beside its text tower", **options: Any) -> Case:
    """A descendant of CLIP; vitviz shows its image's features, projected."""
    parts = {"vision_config": VISION, "text_config": TEXT, "projection_dim": 24, "is_whole": True}
    defaults = {"model": f"{prefix}Model", "tower": "vision_model", "projection": "visual_projection"}
    return watched(row, name, "clip", config=f"{prefix}Config", **{**defaults, **parts, **options})


MULTIMODAL = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96}
FLAVA = {
    "config": "FlavaConfig",
    "is_whole": True,
    "image_config": VISION,
    "text_config": TEXT,
    "multimodal_config": MULTIMODAL,
    "image_codebook_config": {"hidden_size": 16, "vocab_size": 32, "num_blocks_per_group": 1},
    "hidden_size": 64,
    "projection_dim": 24,
}
LANGUAGE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 50}
WHOLE = {"vision_config": VISION, "text_config": TEXT, "is_whole": True}
WITH_TEACHER, DEIT = "DeiTForImageClassificationWithTeacher", "DeiTForImageClassification"
CLIP, SIGLIP = "CLIP vision", "SigLIP vision"

CASES = (
    plain("classifier", "ViTForImageClassification", num_labels=5),
    plain("pooler", "ViTModel"),
    plain("no bias, one channel", "ViTForImageClassification", 1, qkv_bias=False, num_labels=5),
    plain("sharded", "ViTForImageClassification", single=False, num_labels=5),
    watched("DeiT", "two classifiers", "imagenet", WITH_TEACHER, "DeiTConfig", num_labels=5),
    watched("DeiT", "one classifier", "imagenet", DEIT, "DeiTConfig", num_labels=5),
    watched("ViTMAE (encoder)", "encoder", "imagenet", "ViTMAEModel", "ViTMAEConfig", mask_ratio=0.0),
    watched("ViTMSN", "features", "half", "ViTMSNModel", "ViTMSNConfig"),
    watched("ViTMSN", "classifier", "half", "ViTMSNForImageClassification", "ViTMSNConfig", num_labels=5),
    watched("I-JEPA", "features", "imagenet", "IJepaModel", "IJepaConfig"),
    watched("I-JEPA", "classifier", "imagenet", "IJepaForImageClassification", "IJepaConfig", num_labels=5),
    watched("DINOv2", "features", "imagenet", "Dinov2Model", "Dinov2Config"),
    watched("DINOv2", "linear classifier", "imagenet", "Dinov2ForImageClassification", "Dinov2Config", num_labels=5),
    watched("DINOv2", "SwiGLU of the giant", "imagenet", "Dinov2Model", "Dinov2Config", use_swiglu_ffn=True),
    *(
        watched("DINOv2 with registers", name, "imagenet", f"Dinov2WithRegisters{head}", "Dinov2WithRegistersConfig")
        for name, head in (("features", "Model"), ("linear classifier", "ForImageClassification"))
    ),
    watched(CLIP, "features", "clip", "CLIPVisionModel", "CLIPVisionConfig"),
    watched(CLIP, "projection", "clip", "CLIPVisionModelWithProjection", "CLIPVisionConfig", projection_dim=24),
    watched(CLIP, "GELU", "clip", "CLIPVisionModel", "CLIPVisionConfig", hidden_act="gelu"),
    beside_text(CLIP, "CLIP"),
    beside_text(
        *(CLIP, "CLIP", "classifier"), model="CLIPForImageClassification", tower="", projection="", sizes=SIZES[:1]
    ),
    watched(SIGLIP, "attention pooling", "half", "SiglipVisionModel", "SiglipVisionConfig"),
    watched(SIGLIP, "beside its text tower", "half", "SiglipModel", "SiglipConfig", tower="vision_model", **WHOLE),
    watched(SIGLIP, "classifier", "half", "SiglipForImageClassification", "SiglipConfig", **WHOLE),
    watched(
        *("SigLIP 2 (NaFlex)", "attention pooling", "half", "Siglip2VisionModel", "Siglip2VisionConfig"), num_patches=16
    ),
    watched("DINOv3 ViT", "features", "imagenet", "DINOv3ViTModel", "DINOv3ViTConfig"),
    watched(
        *("DINOv3 ViT", "four registers, SwiGLU", "imagenet", "DINOv3ViTModel", "DINOv3ViTConfig"),
        num_register_tokens=4,
        use_gated_mlp=True,
        hidden_act="silu",
    ),
    beside_text("MetaCLIP 2", "MetaClip2"),
    beside_text("Chinese-CLIP", "ChineseCLIP"),
    beside_text("AltCLIP", "AltCLIP"),
    beside_text(
        *("CLIPSeg", "CLIPSeg"),
        model="CLIPSegForImageSegmentation",
        tower="clip.vision_model",
        projection="",
        extract_layers=[0],
        reduce_dim=16,
        decoder_intermediate_size=32,
    ),
    watched(
        *("GIT", "tower", "clip", "GitForCausalLM", "GitConfig"),
        is_whole=True,
        tower="git.image_encoder",
        vision_config=VISION,
        **LANGUAGE,
        **TOKENS,
        num_attention_heads=2,
    ),
    watched("FLAVA, image tower", "alone", "clip", "FlavaImageModel", "FlavaImageConfig"),
    watched("FLAVA, image tower", "with the others", "clip", "FlavaModel", tower="image_model", **FLAVA),
    watched("FLAVA, image tower", "pretraining", "clip", "FlavaForPreTraining", tower="flava.image_model", **FLAVA),
)
