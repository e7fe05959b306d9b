"""Published networks to compare with, by their names on the Hugging Face hub."""

from __future__ import annotations

NETWORKS = {
    "openai/clip-vit-base-patch16": "CLIP ViT-B/16",
    "openai/clip-vit-base-patch32": "CLIP ViT-B/32",
    "openai/clip-vit-large-patch14": "CLIP ViT-L/14",
    "openai/clip-vit-large-patch14-336": "CLIP ViT-L/14 at 336 pixels",
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": "OpenCLIP ViT-B/32",
    "laion/CLIP-ViT-H-14-laion2B-s32B-b79K": "OpenCLIP ViT-H/14",
    "google/siglip-so400m-patch14-384": "SigLIP So400m/14",
    "google/siglip2-base-patch16-224": "SigLIP 2 B/16",
    "google/vit-base-patch16-224": "ViT-B/16",
    "google/vit-base-patch16-224-in21k": "ViT-B/16, ImageNet-21k",
    "Falconsai/nsfw_image_detection": "ViT-B/16, fine-tuned",
    "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k": "ViT-B/16, AugReg",
    "facebook/deit-base-distilled-patch16-224": "DeiT-B/16 distilled",
    "facebook/vit-mae-base": "MAE ViT-B/16",
    "facebook/dino-vits16": "DINO ViT-S/16",
    "facebook/dino-vitb16": "DINO ViT-B/16",
    "facebook/dinov2-small": "DINOv2 ViT-S/14",
    "facebook/dinov2-base": "DINOv2 ViT-B/14",
    "facebook/dinov2-large": "DINOv2 ViT-L/14",
    "facebook/dinov3-vits16-pretrain-lvd1689m": "DINOv3 ViT-S/16",
}
"""What each is, by its name."""
FILES = ("*.json", "*.txt", "*.safetensors")
"""All that a comparison needs of a repository."""


def download(name: str) -> str:
    """The command that gets a network into the folder ``published``."""
    patterns = " ".join(f'"{pattern}"' for pattern in FILES)
    return f"hf download {name} --local-dir published/{name} --include {patterns}"
