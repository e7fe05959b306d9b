"""Every way in which checkpoints of Vision Transformers are written: one record each, in the order they are tried."""

from vitviz.weights.conversion.canonical import Family
from vitviz.weights.families import clip, einops_style, jax, meta, mmpretrain, timm, torchvision, transformers

FAMILIES: tuple[Family, ...] = (
    *meta.FAMILIES,
    *timm.FAMILIES,
    *transformers.FAMILIES,
    *clip.FAMILIES,
    *jax.FAMILIES,
    *torchvision.FAMILIES,
    *mmpretrain.FAMILIES,
    *einops_style.FAMILIES,
)
