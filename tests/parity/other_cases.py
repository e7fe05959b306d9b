"""open_clip and vit-pytorch themselves; Google's archives as timm's own loader reads them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer

from tests.parity.case import Case, Reference, Size, randomised
from tests.parity.package_answers import Answer, collect_outputs, of_open_clip, of_timm
from tests.reference_packages import open_clip, vit_pytorch

SQUARE: tuple[Size, ...] = ((32, 32),)
VISION = {"image_size": 32, "patch_size": 8, "width": 64, "layers": 3, "head_width": 16}
TEXT = {"context_length": 8, "vocab_size": 40, "width": 32, "heads": 2, "layers": 1}


def make_open_clip(folder: Path, quick_gelu: bool, **options: Any) -> Reference:
    cfg = {"embed_dim": 24, "vision_cfg": {**VISION, **options}, "text_cfg": TEXT, "quick_gelu": quick_gelu}
    model = randomised(open_clip.CLIP(**cfg))
    torch.save(model.state_dict(), folder / "open_clip_pytorch_model.bin")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": cfg, "preprocess_cfg": {}}))

    return Reference(folder, partial(of_open_clip, model.visual), model.visual)


def make_vit_pytorch(folder: Path, **options: Any) -> Reference:
    small = {"image_size": 32, "patch_size": 8, "num_classes": 7, "dim": 64, "depth": 3, "heads": 4, "mlp_dim": 96}
    model = randomised(vit_pytorch.ViT(**{**small, "dim_head": 16, **options}))
    torch.save(model.state_dict(), folder / "vit.pt")

    def answer(pixels: torch.Tensor) -> Answer:
        with collect_outputs([layer[0].attend for layer in model.transformer.layers], lambda each: each) as weights:
            output = model(pixels)
        return Answer(output, tuple(weights))

    return Reference(folder / "vit.pt", answer)


def make_npz(folder: Path, prefix: str = "", gap: bool = False, dtype: str = "float32") -> Reference:
    """A random archive in Google's layout, opened by timm's own loader."""
    width, heads, depth, mlp, classes = 64, 4, 3, 96, 7
    numbers = (0, 1, 0) if gap else (1, 2, 3)
    block = {
        "LayerNorm_0": (width,),
        f"LayerNorm_{numbers[1]}": (width,),
        f"MlpBlock_{numbers[2]}/Dense_0": (width, mlp),
        f"MlpBlock_{numbers[2]}/Dense_1": (mlp, width),
        **{
            f"MultiHeadDotProductAttention_{numbers[0]}/{part}": (width, heads, 16)
            for part in ("query", "key", "value")
        },
        f"MultiHeadDotProductAttention_{numbers[0]}/out": (heads, 16, width),
    }
    shapes: dict[str, tuple[int, ...]] = {"embedding/kernel": (8, 8, 3, width), "embedding/bias": (width,)}
    shapes |= {"head/kernel": (width, classes), "head/bias": (classes,)}
    shapes |= {"Transformer/encoder_norm/scale": (width,), "Transformer/encoder_norm/bias": (width,)}
    if gap:
        shapes["pos_embedding"] = (1, 16, width)
    else:
        shapes |= {"cls": (1, 1, width), "Transformer/posembed_input/pos_embedding": (1, 17, width)}
    for layer in range(depth):
        for name, shape in block.items():
            norm = "LayerNorm" in name
            bias = (width,) if norm or name.endswith("out") else shape[1:]
            shapes[f"Transformer/encoderblock_{layer}/{name}/{'scale' if norm else 'kernel'}"] = shape
            shapes[f"Transformer/encoderblock_{layer}/{name}/bias"] = bias
    random = np.random.RandomState(0)
    arrays = {
        prefix + name: (random.standard_normal(shape) * 0.15 + name.endswith("scale")).astype(np.float32)
        for name, shape in shapes.items()
    }
    np.savez(folder / "vit.npz", **arrays)
    options = {"class_token": False, "global_pool": "avg", "fc_norm": False} if gap else {}
    model = VisionTransformer(
        32, 8, 3, classes, embed_dim=width, depth=depth, num_heads=heads, mlp_ratio=1.5, **options
    )
    model.load_pretrained(str(folder / "vit.npz"))
    model.eval().requires_grad_(False)
    return Reference(folder / "vit.npz", partial(of_timm, model), model)


HEADS = {"heads": 4}
TOWER, GOOGLE = "OpenCLIP visual tower", "Google's JAX .npz"


def by_vit_pytorch(name: str, sizes: tuple[Size, ...] = SQUARE, channels: int = 3, **options: Any) -> Case:
    """With the facts that its state dict leaves open: heads, and an oblong image."""
    given = {
        **({} if "heads" in options else HEADS),
        **{key: options[key] for key in ("image_size",) if key in options},
    }
    make = partial(make_vit_pytorch, channels=channels, **options)
    return Case("vit-pytorch ViT", name, "vit-pytorch", make, sizes, given, channels)


CASES = (
    *(
        Case(TOWER, name, "watched by open_clip", partial(make_open_clip, **options), SQUARE)
        for name, options in {
            "GELU": {"quick_gelu": False},
            "mean of the patches": {"quick_gelu": False, "pool_type": "avg", "final_ln_after_pool": True},
            "LayerScale, no norm before the layers": {"quick_gelu": True, "ls_init_value": 0.5, "no_ln_pre": True},
        }.items()
    ),
    Case(GOOGLE, "ViT", "google-npz", make_npz, SQUARE),
    Case(
        *(GOOGLE, "big_vision, mean of the patches", "google-npz"),
        partial(make_npz, prefix="params/", gap=True),
        SQUARE,
    ),
    by_vit_pytorch("CLS", ((32, 32), (24, 32), (16, 16))),
    by_vit_pytorch("mean", ((32, 32), (24, 32)), pool="mean"),
    by_vit_pytorch("64 features a head", dim_head=64),
    by_vit_pytorch("one head, no output projection", heads=1, dim_head=64),
    by_vit_pytorch("rectangles", ((24, 40),), image_size=(24, 40)),
    by_vit_pytorch("one channel", channels=1),
)
