"""The layouts that open in vitviz's own network: one record each, in the order they are tried."""

from vitviz.weights.conversion.canonical import Family
from vitviz.weights.families import einops_style, jax, meta, timm, transformers

FAMILIES: tuple[Family, ...] = (
    *meta.FAMILIES,
    timm.TIMM,
    transformers.VIT,
    *jax.FAMILIES,
    *einops_style.FAMILIES,
)
