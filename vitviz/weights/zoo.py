"""Checkpoints by name, with their repository, size, licence and what their attention is known for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NamedModel:
    """A published checkpoint.

    Args:
        name: what ``load`` takes.
        family: the group that lists show it in.
        title: common name of its architecture.
        repository: on the Hugging Face hub; empty for a bundled one.
        megabytes: size of the download in millions of bytes.
        licence: of the weights.
        input_size: side of its input in pixels.
        known_for: one line about its attention.
    """

    name: str
    family: str
    title: str
    repository: str
    megabytes: float
    licence: str
    input_size: int
    known_for: str

    @property
    def card(self) -> dict[str, str]:
        """Facts about it that are not in its file."""
        return {"known for": self.known_for, "licence": self.licence, "from": f"huggingface.co/{self.repository}"}


APACHE, NON_COMMERCIAL, META_V3, MIT = "apache-2.0", "cc-by-nc-4.0", "dinov3-license", "mit"
SUPERVISED = "Trained on labels: CLS attention is spread out, and late layers have a few patches that take most of it."
DISTILLED = "A second prefix token learns from a convolutional teacher: compare its attention with that of CLS."
LAYER_SCALE = "LayerScale lets layers differ: late heads are sharper than those of AugReg."
RECONSTRUCTION = "Never saw a label: heads attend by place and texture, and the CLS token to almost everything."
SEGMENTS = (
    "The heads of the last layer outline objects without having been told what one is (Caron et al. 2021, fig. 1)."
)
OUTLIERS = "Outlier patches in the background hold global information: the artefacts that registers were made for."
REGISTERS = "Registers take up what outlier patches held before: clean maps (Darcet et al. 2024, fig. 1)."
ROTARY = "Rotary positions and four registers: dense maps that stay sharp at any resolution."
TEXT = "Attention learned from captions: text and logos attract attention."
POOLED = "No CLS token: one learned query pools the patches at the end; inspect the attention of patches."
GAP = "No CLS token, four registers, the mean of the patches is classified."

TABLE = (
    (
        "vit_tiny_patch16",
        "ViT (AugReg)",
        "ViT-Ti/16",
        "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k",
        22.9,
        APACHE,
        224,
        SUPERVISED,
    ),
    (
        "vit_small_patch16",
        "ViT (AugReg)",
        "ViT-S/16",
        "timm/vit_small_patch16_224.augreg_in21k_ft_in1k",
        88.2,
        APACHE,
        224,
        SUPERVISED,
    ),
    (
        "vit_base_patch16",
        "ViT (AugReg)",
        "ViT-B/16",
        "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k",
        346.3,
        APACHE,
        224,
        SUPERVISED,
    ),
    (
        "vit_base_patch16_google",
        "ViT (AugReg)",
        "ViT-B/16, of the paper",
        "google/vit-base-patch16-224",
        346.3,
        APACHE,
        224,
        SUPERVISED,
    ),
    (
        "vit_large_patch16",
        "ViT (AugReg)",
        "ViT-L/16",
        "timm/vit_large_patch16_224.augreg_in21k_ft_in1k",
        1217.3,
        APACHE,
        224,
        SUPERVISED,
    ),
    ("deit_tiny", "DeiT", "DeiT-Ti/16", "timm/deit_tiny_patch16_224.fb_in1k", 22.9, APACHE, 224, SUPERVISED),
    ("deit_small", "DeiT", "DeiT-S/16", "timm/deit_small_patch16_224.fb_in1k", 88.2, APACHE, 224, SUPERVISED),
    ("deit_base", "DeiT", "DeiT-B/16", "timm/deit_base_patch16_224.fb_in1k", 346.3, APACHE, 224, SUPERVISED),
    (
        "deit_tiny_distilled",
        "DeiT",
        "DeiT-Ti/16 distilled",
        "timm/deit_tiny_distilled_patch16_224.fb_in1k",
        23.6,
        APACHE,
        224,
        DISTILLED,
    ),
    (
        "deit_small_distilled",
        "DeiT",
        "DeiT-S/16 distilled",
        "timm/deit_small_distilled_patch16_224.fb_in1k",
        89.7,
        APACHE,
        224,
        DISTILLED,
    ),
    (
        "deit3_small",
        "DeiT",
        "DeiT-III-S/16",
        "timm/deit3_small_patch16_224.fb_in22k_ft_in1k",
        88.2,
        APACHE,
        224,
        LAYER_SCALE,
    ),
    ("mae_vitb16", "MAE", "ViT-B/16", "timm/vit_base_patch16_224.mae", 343.2, NON_COMMERCIAL, 224, RECONSTRUCTION),
    ("dino_vits16", "DINO", "ViT-S/16", "timm/vit_small_patch16_224.dino", 86.7, APACHE, 224, SEGMENTS),
    ("dino_vits8", "DINO", "ViT-S/8", "timm/vit_small_patch8_224.dino", 86.7, APACHE, 224, SEGMENTS),
    ("dino_vitb16", "DINO", "ViT-B/16", "timm/vit_base_patch16_224.dino", 343.2, APACHE, 224, SEGMENTS),
    ("dino_vitb8", "DINO", "ViT-B/8", "timm/vit_base_patch8_224.dino", 343.2, APACHE, 224, SEGMENTS),
    ("dinov2_vits14", "DINOv2", "ViT-S/14", "facebook/dinov2-small", 88.2, APACHE, 224, OUTLIERS),
    ("dinov2_vitb14", "DINOv2", "ViT-B/14", "facebook/dinov2-base", 346.3, APACHE, 224, OUTLIERS),
    ("dinov2_vitl14", "DINOv2", "ViT-L/14", "facebook/dinov2-large", 1217.5, APACHE, 224, OUTLIERS),
    (
        "dinov2_vits14_reg",
        "DINOv2",
        "ViT-S/14, registers",
        "facebook/dinov2-with-registers-small",
        88.2,
        APACHE,
        224,
        REGISTERS,
    ),
    (
        "dinov2_vitb14_reg",
        "DINOv2",
        "ViT-B/14, registers",
        "facebook/dinov2-with-registers-base",
        346.3,
        APACHE,
        224,
        REGISTERS,
    ),
    ("dinov3_vits16", "DINOv3", "ViT-S/16", "timm/vit_small_patch16_dinov3.lvd1689m", 86.3, META_V3, 256, ROTARY),
    ("dinov3_vitb16", "DINOv3", "ViT-B/16", "timm/vit_base_patch16_dinov3.lvd1689m", 342.6, META_V3, 256, ROTARY),
    ("clip_vitb32_laion", "CLIP", "ViT-B/32", "timm/vit_base_patch32_clip_224.laion2b", 351.4, APACHE, 224, TEXT),
    (
        "clip_vitb16_imagenet",
        "CLIP",
        "ViT-B/16, tuned on ImageNet",
        "timm/vit_base_patch16_clip_224.laion2b_ft_in12k_in1k",
        346.3,
        APACHE,
        224,
        TEXT,
    ),
    ("siglip_vitb16", "SigLIP", "ViT-B/16", "timm/vit_base_patch16_siglip_224.webli", 371.5, APACHE, 224, POOLED),
    (
        "siglip2_vitb16",
        "SigLIP",
        "ViT-B/16, SigLIP 2",
        "timm/vit_base_patch16_siglip_224.v2_webli",
        371.5,
        APACHE,
        224,
        POOLED,
    ),
    (
        "vit_little_reg4",
        "ViT, pooled",
        "ViT-little/16",
        "timm/vit_little_patch16_reg4_gap_256.sbb_in1k",
        90.1,
        APACHE,
        256,
        GAP,
    ),
)

ZOO = {row[0]: NamedModel(*row) for row in TABLE}
"""Named checkpoints, grouped by family, small ones first."""
