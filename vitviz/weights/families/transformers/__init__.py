"""Hugging Face transformers (Wolf et al. 2020): its Vision Transformers, alone or as the tower of another model."""

from vitviz.weights.families.transformers import clip, dino, vit

FAMILIES = (*vit.FAMILIES, *dino.FAMILIES, *clip.FAMILIES)

__all__ = ["FAMILIES"]
