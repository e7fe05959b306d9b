"""Models of transformers, written by their own ``save_pretrained``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.parity.case import Case, Reference, Size, randomised
from tests.parity.package_answers import Answer, of_transformers
from tests.reference_packages import transformers

SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
MLP = {"intermediate_size": 96}
TEXT = {**SMALL, **MLP, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
SIZES: tuple[Size, ...] = ((32, 32), (48, 48), (24, 40))


def make(
    folder: Path,
    model: str,
    config: str,
    single: bool = True,
    output: Callable[[torch.Tensor], torch.Tensor] | None = None,
    encoder: str = "",
    **options: Any,
) -> Reference:
    """Write a model, of which vitviz shows the encoder where there is one, and this output of its tokens."""
    settings = getattr(transformers, config)(**{**SMALL, **(MLP if "Dinov2" not in config else {}), **options})
    settings._attn_implementation = "eager"
    network = randomised(getattr(transformers, model)(settings))
    network.save_pretrained(folder, **({} if single else {"max_shard_size": "100KB"}))
    return Reference(folder, answer_by(network.get_submodule(encoder), output), network)


def answer_by(
    network: Any, output: Callable[[torch.Tensor], torch.Tensor] | None = None, projection: Any = None
) -> Callable[[torch.Tensor], Answer]:
    """The answer of a model of transformers, with the output that its tokens have where it has none."""

    def answer(pixels: torch.Tensor) -> Answer:
        found = of_transformers(network, pixels, projection)
        return found if output is None else replace(found, output=output(found.tokens))

    return answer


def make_tower(folder: Path, model: str, config: str, **options: Any) -> Reference:
    """A model of images and text, of which vitviz takes the images' half."""
    whole = getattr(transformers, config)(
        vision_config={**SMALL, **MLP, **options}, text_config=TEXT, projection_dim=24
    )
    whole.vision_config._attn_implementation = "eager"
    whole._attn_implementation = "eager"
    network = randomised(getattr(transformers, model)(whole))
    network.save_pretrained(folder)
    tower = network if "Classification" in model else network.vision_model
    return Reference(folder, answer_by(tower, None, getattr(network, "visual_projection", None)), network)


def cls_of(tokens: torch.Tensor) -> torch.Tensor:
    return tokens[:, 0]


def mean_of(tokens: torch.Tensor) -> torch.Tensor:
    return tokens.mean(1)


def case(
    row: str, name: str, family: str, model: str, config: str, sizes: tuple[Size, ...] = SIZES, **options: Any
) -> Case:
    maker = options.pop("maker", make)
    overrides = options.pop("overrides", {})
    channels = options.get("num_channels", 3)
    return Case(row, name, family, partial(maker, model=model, config=config, **options), sizes, overrides, channels)


IJEPA = "transformers-ijepa"
VIT, DEIT, CLIP = "transformers-vit", "transformers-deit", "transformers-clip"
DINOV2, REGISTERS = "transformers-dinov2", "transformers-dinov2-registers"
SIGLIP, SIGLIP2, DINOV3 = "transformers-siglip", "transformers-siglip2", "transformers-dinov3"

CASES = (
    case("transformers ViT", "classifier", VIT, "ViTForImageClassification", "ViTConfig", num_labels=5),
    case("transformers ViT", "pooler", VIT, "ViTModel", "ViTConfig"),
    case(
        "transformers ViT",
        "no bias, one channel",
        VIT,
        "ViTForImageClassification",
        "ViTConfig",
        qkv_bias=False,
        num_channels=1,
        num_labels=5,
    ),
    case("transformers ViT", "sharded", VIT, "ViTForImageClassification", "ViTConfig", single=False, num_labels=5),
    case(
        "transformers DeiT",
        "two classifiers",
        DEIT,
        "DeiTForImageClassificationWithTeacher",
        "DeiTConfig",
        num_labels=5,
    ),
    case("transformers DeiT", "one classifier", DEIT, "DeiTForImageClassification", "DeiTConfig", num_labels=5),
    case(
        "transformers ViTMAE (encoder)",
        "encoder",
        "transformers-vit-mae",
        "ViTMAEModel",
        "ViTMAEConfig",
        mask_ratio=0.0,
        output=cls_of,
    ),
    case(
        "transformers ViT",
        "masked image modelling",
        VIT,
        "ViTForMaskedImageModeling",
        "ViTConfig",
        encoder_stride=8,
        encoder="vit",
        output=cls_of,
    ),
    case("transformers ViTMSN", "features", VIT, "ViTMSNModel", "ViTMSNConfig", output=cls_of),
    case("transformers ViTMSN", "classifier", VIT, "ViTMSNForImageClassification", "ViTMSNConfig", num_labels=5),
    case("transformers I-JEPA", "features", IJEPA, "IJepaModel", "IJepaConfig", output=mean_of),
    case("transformers I-JEPA", "classifier", IJEPA, "IJepaForImageClassification", "IJepaConfig", num_labels=5),
    case("transformers DINOv2", "features", DINOV2, "Dinov2Model", "Dinov2Config"),
    case(
        "transformers DINOv2",
        "linear classifier",
        DINOV2,
        "Dinov2ForImageClassification",
        "Dinov2Config",
        num_labels=5,
    ),
    case(
        "transformers DINOv2",
        "SwiGLU of the giant",
        DINOV2,
        "Dinov2Model",
        "Dinov2Config",
        use_swiglu_ffn=True,
    ),
    case(
        "transformers DINOv2 with registers",
        "features",
        REGISTERS,
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersConfig",
    ),
    case(
        "transformers DINOv2 with registers",
        "linear classifier",
        REGISTERS,
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        num_labels=5,
    ),
    case("transformers CLIP vision", "features", CLIP, "CLIPVisionModel", "CLIPVisionConfig"),
    case(
        "transformers CLIP vision",
        "projection",
        CLIP,
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        projection_dim=24,
    ),
    case("transformers CLIP vision", "GELU", CLIP, "CLIPVisionModel", "CLIPVisionConfig", hidden_act="gelu"),
    case("transformers CLIP vision", "beside its text tower", CLIP, "CLIPModel", "CLIPConfig", maker=make_tower),
    case("transformers CLIP vision", "classifier", CLIP, "CLIPForImageClassification", "CLIPConfig", maker=make_tower),
    case("transformers SigLIP vision", "attention pooling", SIGLIP, "SiglipVisionModel", "SiglipVisionConfig"),
    case(
        "transformers SigLIP vision", "beside its text tower", SIGLIP, "SiglipModel", "SiglipConfig", maker=make_tower
    ),
    case(
        "transformers SigLIP vision",
        "classifier",
        SIGLIP,
        "SiglipForImageClassification",
        "SiglipConfig",
        maker=make_tower,
    ),
    case(
        "transformers SigLIP 2 (NaFlex)",
        "attention pooling",
        SIGLIP2,
        "Siglip2VisionModel",
        "Siglip2VisionConfig",
        num_patches=16,
    ),
    case("transformers DINOv3 ViT", "features", DINOV3, "DINOv3ViTModel", "DINOv3ViTConfig"),
    case(
        "transformers DINOv3 ViT",
        "four registers, SwiGLU",
        DINOV3,
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        num_register_tokens=4,
        use_gated_mlp=True,
        hidden_act="silu",
    ),
)
