"""Facts about published checkpoints of transformers, for files without their configuration, looked up by shapes."""

from __future__ import annotations

from typing import Any

from vitviz.weights.families.published import Shapes, by_shape

__all__ = ["CLIP", "DEIT", "DINOV2", "DINOV3", "NAFLEX", "SIGLIP", "VIT", "by_shape"]


def _facts(activation: str, epsilon: float) -> dict[str, Any]:
    return {"activation": activation, "norm_epsilon": epsilon}


LABELLED, FEATURES = (1000,), (0,)
GELU = _facts("gelu", 1e-12)
MSN = _facts("gelu", 1e-6)

VIT = (
    Shapes("google/vit-base-patch16-224", 768, 12, 12, 16, 14, LABELLED, GELU),
    Shapes("google/vit-base-patch16-224-in21k", 768, 12, 12, 16, 14, FEATURES, GELU),
    Shapes("google/vit-base-patch16-384", 768, 12, 12, 16, 24, LABELLED, GELU),
    Shapes("google/vit-base-patch32-224-in21k", 768, 12, 12, 32, 7, FEATURES, GELU),
    Shapes("google/vit-base-patch32-384", 768, 12, 12, 32, 12, LABELLED, GELU),
    Shapes("google/vit-large-patch16-224", 1024, 24, 16, 16, 14, LABELLED, GELU),
    Shapes("google/vit-large-patch16-224-in21k", 1024, 24, 16, 16, 14, FEATURES, GELU),
    Shapes("google/vit-large-patch16-384", 1024, 24, 16, 16, 24, LABELLED, GELU),
    Shapes("google/vit-large-patch32-224-in21k", 1024, 24, 16, 32, 7, FEATURES, GELU),
    Shapes("google/vit-large-patch32-384", 1024, 24, 16, 32, 12, LABELLED, GELU),
    Shapes("google/vit-huge-patch14-224-in21k", 1280, 32, 16, 14, 16, FEATURES, GELU),
    Shapes("facebook/deit-tiny-patch16-224", 192, 12, 3, 16, 14, LABELLED, GELU),
    Shapes("facebook/deit-small-patch16-224", 384, 12, 6, 16, 14, LABELLED, GELU),
    Shapes("facebook/deit-base-patch16-224", 768, 12, 12, 16, 14, LABELLED, GELU),
    Shapes("facebook/deit-base-patch16-384", 768, 12, 12, 16, 24, LABELLED, GELU),
    Shapes("facebook/dino-vits16", 384, 12, 6, 16, 14, FEATURES, GELU),
    Shapes("facebook/dino-vits8", 384, 12, 6, 8, 28, FEATURES, GELU),
    Shapes("facebook/dino-vitb16", 768, 12, 12, 16, 14, FEATURES, GELU),
    Shapes("facebook/dino-vitb8", 768, 12, 12, 8, 28, FEATURES, GELU),
    Shapes("facebook/vit-mae-base", 768, 12, 12, 16, 14, FEATURES, GELU),
    Shapes("facebook/vit-mae-large", 1024, 24, 16, 16, 14, FEATURES, GELU),
    Shapes("facebook/vit-mae-huge", 1280, 32, 16, 14, 16, FEATURES, GELU),
    Shapes("facebook/vit-msn-small", 384, 12, 6, 16, 14, FEATURES, MSN),
    Shapes("facebook/vit-msn-base", 768, 12, 12, 16, 14, FEATURES, MSN),
    Shapes("facebook/vit-msn-base-4", 768, 12, 12, 4, 56, FEATURES, MSN),
    Shapes("facebook/vit-msn-large", 1024, 24, 16, 16, 14, FEATURES, MSN),
    Shapes("facebook/vit-msn-large-7", 1024, 24, 16, 7, 32, FEATURES, MSN),
)
DEIT = (
    Shapes("facebook/deit-tiny-distilled-patch16-224", 192, 12, 3, 16, 14, LABELLED, GELU),
    Shapes("facebook/deit-small-distilled-patch16-224", 384, 12, 6, 16, 14, LABELLED, GELU),
    Shapes("facebook/deit-base-distilled-patch16-224", 768, 12, 12, 16, 14, LABELLED, GELU),
    Shapes("facebook/deit-base-distilled-patch16-384", 768, 12, 12, 16, 24, LABELLED, GELU),
)
_DINOV2 = _facts("gelu", 1e-6)
# The gated MLP always has the same activation, so its packing does not matter.
DINOV2 = (
    Shapes("facebook/dinov2-small", 384, 12, 6, 14, 37, (0, 1000), _DINOV2),
    Shapes("facebook/dinov2-base", 768, 12, 12, 14, 37, (0, 1000), _DINOV2),
    Shapes("facebook/dinov2-large", 1024, 24, 16, 14, 37, (0, 1000), _DINOV2),
    Shapes("facebook/dinov2-giant", 1536, 40, 24, 14, 37, (0, 1000), _DINOV2),
)
_GELU, _SILU = _facts("gelu", 1e-5), _facts("silu", 1e-5)
DINOV3 = (
    Shapes("facebook/dinov3-vits16", 384, 12, 6, 16, 0, FEATURES, _GELU, gated=False),
    Shapes("facebook/dinov3-vits16plus", 384, 12, 6, 16, 0, FEATURES, _SILU, gated=True),
    Shapes("facebook/dinov3-vitb16", 768, 12, 12, 16, 0, FEATURES, _GELU, gated=False),
    Shapes("facebook/dinov3-vitl16", 1024, 24, 16, 16, 0, FEATURES, _GELU, gated=False),
    Shapes("facebook/dinov3-vith16plus", 1280, 32, 20, 16, 0, FEATURES, _SILU, gated=True),
    Shapes("facebook/dinov3-vit7b16", 4096, 40, 32, 16, 0, FEATURES, _SILU, gated=True),
)
_QUICK = _facts("quick gelu", 1e-5)
CLIP = (
    Shapes("openai/clip-vit-base-patch32", 768, 12, 12, 32, 7, FEATURES, _QUICK),
    Shapes("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", 768, 12, 12, 32, 7, FEATURES, _GELU),
    Shapes("openai/clip-vit-base-patch16", 768, 12, 12, 16, 14, FEATURES, _QUICK),
    Shapes("laion/CLIP-ViT-B-16-laion2B-s34B-b88K", 768, 12, 12, 16, 14, FEATURES, _GELU),
    Shapes("openai/clip-vit-large-patch14", 1024, 24, 16, 14, 16, FEATURES, _QUICK),
    Shapes("laion/CLIP-ViT-L-14-laion2B-s32B-b82K", 1024, 24, 16, 14, 16, FEATURES, _GELU),
    Shapes("openai/clip-vit-large-patch14-336", 1024, 24, 16, 14, 24, FEATURES, _QUICK),
    Shapes("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", 1280, 32, 16, 14, 16, FEATURES, _GELU),
    Shapes("facebook/metaclip-h14-fullcc2.5b", 1280, 32, 16, 14, 16, FEATURES, _QUICK),
    Shapes("laion/CLIP-ViT-g-14-laion2B-s12B-b42K", 1408, 40, 16, 14, 16, FEATURES, _GELU),
    Shapes("laion/CLIP-ViT-bigG-14-laion2B-39B-b160k", 1664, 48, 16, 14, 16, FEATURES, _GELU),
)
_SIGLIP = _facts("gelu tanh", 1e-6)


def _siglip(name: str, width: int, depth: int, heads: int, patch: int, *sizes: int) -> list[Shapes]:
    """A model that was published at several image sizes."""
    return [
        Shapes(f"google/{name}-{size}", width, depth, heads, patch, size // patch, FEATURES, _SIGLIP) for size in sizes
    ]


SIGLIP = (
    *_siglip("siglip-base-patch16", 768, 12, 12, 16, 224, 256, 384, 512),
    *_siglip("siglip-large-patch16", 1024, 24, 16, 16, 256, 384),
    *_siglip("siglip-so400m-patch14", 1152, 27, 16, 14, 224, 384),
    *_siglip("siglip2-base-patch16", 768, 12, 12, 16, 224, 256, 384, 512),
    *_siglip("siglip2-base-patch32", 768, 12, 12, 32, 256),
    *_siglip("siglip2-large-patch16", 1024, 24, 16, 16, 256, 384, 512),
    *_siglip("siglip2-so400m-patch14", 1152, 27, 16, 14, 224, 384),
    *_siglip("siglip2-so400m-patch16", 1152, 27, 16, 16, 256, 384, 512),
    *_siglip("siglip2-giant-opt-patch16", 1536, 40, 16, 16, 256, 384),
)
NAFLEX = (
    Shapes("google/siglip2-base-patch16-naflex", 768, 12, 12, 16, 16, FEATURES, _SIGLIP),
    Shapes("google/siglip2-so400m-patch16-naflex", 1152, 27, 16, 16, 16, FEATURES, _SIGLIP),
)
