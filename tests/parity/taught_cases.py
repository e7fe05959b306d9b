"""The layouts of :mod:`tests.parity.taught`, as bare state dicts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

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
HEADS = {"heads": taught.HEADS}
CASES = (
    Case(
        "vit-pytorch, first layout",
        "CLS",
        "vit-pytorch-first",
        partial(make, layout=taught.LINEAR_PATCHES),
        SMALLER,
        {**HEADS, "pooling": "cls"},
    ),
    Case(
        "vit-pytorch, first layout",
        "mean of all tokens",
        "vit-pytorch-first",
        partial(make, layout=replace(taught.LINEAR_PATCHES, pooling="mean of all"), wrap="state_dict"),
        SMALLER,
        {**HEADS, "pooling": "mean of all"},
    ),
    Case(
        "vit-pytorch, first layout",
        "one head, no output projection",
        "vit-pytorch-first",
        partial(make, layout=taught.ONE_HEAD),
        SQUARE,
        {"pooling": "cls"},
    ),
    Case(
        "ViT on torch.nn.MultiheadAttention",
        "convolution",
        "multihead",
        partial(make, layout=taught.MULTIHEAD),
        SMALLER,
        HEADS,
    ),
    Case(
        "ViT on torch.nn.MultiheadAttention",
        "linear",
        "multihead",
        partial(make, layout=taught.MULTIHEAD_LINEAR, wrap="model"),
        SMALLER,
        HEADS,
    ),
    Case(
        "transformers ViT",
        "state dict alone",
        "transformers-vit",
        bare_state,
        ((32, 32), (24, 40)),
        {**HEADS, "pooling": "cls", "activation": "gelu", "norm_epsilon": 1e-12},
    ),
    Case("PyTorch port of the JAX ViT", "heads apart", "jax-port", partial(make, layout=taught.TENSORDOT), SQUARE),
    Case(
        "einops ViT as nn.Sequential",
        "one map for queries, keys and values",
        "sequential",
        partial(make, layout=taught.SEQUENTIAL),
        SQUARE,
        HEADS,
    ),
    Case(
        "einops ViT as nn.Sequential",
        "three maps",
        "sequential",
        partial(make, layout=taught.SEQUENTIAL_APART),
        SQUARE,
        HEADS,
    ),
)
