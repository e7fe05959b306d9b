"""The layouts of :mod:`tests.parity.taught`, as bare state dicts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.parity import taught
from tests.parity.case import Case, Reference, Size
from tests.parity.transformers_cases import plain


def make(folder: Path, layout: taught.Layout, wrap: str = "") -> Reference:
    state = layout.state()
    written = layout.written(state)
    torch.save({wrap: written, "epoch": 3} if wrap else written, folder / "vit.pth")
    return Reference(folder / "vit.pth", partial(layout.answer, state))


def bare_state(folder: Path) -> Reference:
    """A transformers model of which only the state dict was kept."""
    reference = plain("", "ViTForImageClassification", num_labels=7).make(folder)
    (folder / "config.json").unlink()
    return reference


SQUARE: tuple[Size, ...] = ((32, 32),)
SMALLER: tuple[Size, ...] = ((32, 32), (16, 32), (24, 24))
FIRST, TORCH, SEQUENTIAL = (
    "vit-pytorch, first layout",
    "ViT on torch.nn.MultiheadAttention",
    "einops ViT as nn.Sequential",
)
HEADS = {"heads": taught.HEADS}
CLS, ALL = {"pooling": "cls"}, {"pooling": "mean of all"}
OF_ALL = replace(taught.LINEAR_PATCHES, pooling="mean of all")
BARE = {**HEADS, **CLS, "activation": "gelu", "norm_epsilon": 1e-12}


def case(
    row: str, name: str, family: str, layout: taught.Layout, sizes: tuple[Size, ...], given: Any, wrap: str = ""
) -> Case:
    return Case(row, name, family, partial(make, layout=layout, wrap=wrap), sizes, given)


CASES = (
    case(FIRST, "CLS", "vit-pytorch-first", taught.LINEAR_PATCHES, SMALLER, {**HEADS, **CLS}),
    case(FIRST, "mean of all tokens", "vit-pytorch-first", OF_ALL, SMALLER, {**HEADS, **ALL}, "state_dict"),
    case(FIRST, "one head, no output projection", "vit-pytorch-first", taught.ONE_HEAD, SQUARE, CLS),
    case(TORCH, "convolution", "multihead", taught.MULTIHEAD, SMALLER, HEADS),
    case(TORCH, "linear", "multihead", taught.MULTIHEAD_LINEAR, SMALLER, HEADS, "model"),
    Case("transformers ViT", "state dict alone", "transformers-vit", bare_state, ((32, 32), (24, 40)), BARE),
    case("PyTorch port of the JAX ViT", "heads apart", "jax-port", taught.TENSORDOT, SQUARE, {}),
    case(SEQUENTIAL, "one map for queries, keys and values", "sequential", taught.SEQUENTIAL, SQUARE, HEADS),
    case(SEQUENTIAL, "three maps", "sequential", taught.SEQUENTIAL_APART, SQUARE, HEADS),
)
