"""The layouts of :mod:`tests.parity.taught`, as bare state dicts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from tests.parity import taught
from tests.parity.case import Answer, Case, Reference, Size, collected, randomised, with_weights
from tests.parity.transformers_cases import case as transformers_case


def make(folder: Path, build: Callable[[], nn.Module], wrap: str = "") -> Reference:
    model = randomised(build())
    state = model.state_dict()
    torch.save({wrap: state, "epoch": 3} if wrap else state, folder / "vit.pth")
    multihead = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    with_weights(multihead)
    softmaxes: list[nn.Module] = [module for module in model.modules() if isinstance(module, nn.Softmax)]

    def answer(pixels: torch.Tensor) -> Answer:
        def pick(output: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return output[1] if isinstance(output, tuple) else output

        with collected([*multihead] or softmaxes, pick) as weights:
            return model(pixels), weights

    return Reference(folder / "vit.pth", answer)


def bare_state(folder: Path, **options: object) -> Reference:
    """A transformers model of which only the state dict was kept."""
    reference = transformers_case("", "", "", "ViTForImageClassification", "ViTConfig", num_labels=7).make(folder)
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
        partial(make, build=taught.LinearPatchViT),
        SMALLER,
        {**HEADS, "pooling": "cls"},
    ),
    Case(
        "vit-pytorch, first layout",
        "mean of all tokens",
        "vit-pytorch-first",
        partial(make, build=partial(taught.LinearPatchViT, "mean"), wrap="state_dict"),
        SMALLER,
        {**HEADS, "pooling": "mean of all"},
    ),
    Case(
        "vit-pytorch, first layout",
        "one head, no output projection",
        "vit-pytorch-first",
        partial(make, build=partial(taught.LinearPatchViT, "cls", 1, 64)),
        SQUARE,
        {"pooling": "cls"},
    ),
    Case(
        "ViT on torch.nn.MultiheadAttention",
        "convolution",
        "multihead",
        partial(make, build=taught.MultiheadViT),
        SMALLER,
        HEADS,
    ),
    Case(
        "ViT on torch.nn.MultiheadAttention",
        "linear",
        "multihead",
        partial(make, build=partial(taught.MultiheadViT, taught.LinearExtractor), wrap="model"),
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
    Case("PyTorch port of the JAX ViT", "heads apart", "jax-port", partial(make, build=taught.TensordotViT), SQUARE),
    Case(
        "PyTorch-Pretrained-ViT",
        "CLS",
        "pytorch-pretrained-vit",
        partial(make, build=taught.PretrainedViT),
        SQUARE,
        HEADS,
    ),
    Case(
        "jeonsworld/ViT-pytorch",
        "CLS",
        "jeonsworld",
        partial(make, build=taught.JeonsworldViT),
        SQUARE,
        HEADS,
    ),
    *(
        Case(
            "MMPretrain ViT, DeiT",
            name,
            "mmpretrain",
            partial(make, build=partial(taught.MMViT, **options), wrap="state_dict" if options else ""),
            ((32, 32), (24, 40)),
            {**HEADS, "activation": "gelu", "norm_epsilon": 1e-6},
        )
        for name, options in (("CLS", {}), ("mean of the patches, LayerScale", {"is_mean": True, "is_scaled": True}))
    ),
    Case(
        "einops ViT as nn.Sequential",
        "one map for queries, keys and values",
        "sequential",
        partial(make, build=taught.sequential_vit),
        SQUARE,
        HEADS,
    ),
    Case(
        "einops ViT as nn.Sequential",
        "three maps",
        "sequential",
        partial(make, build=partial(taught.sequential_vit, False)),
        SQUARE,
        HEADS,
    ),
)
