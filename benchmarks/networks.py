"""The networks that are measured: the same shapes in vitviz, timm and transformers, with random weights."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from vitviz import Model, Preprocessing, VisionTransformer, ViTConfig, load

os.environ.setdefault("HF_HUB_OFFLINE", "1")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shape:
    """A square image and the Vision Transformer that it goes through.

    Args:
        name: of the model, as in the papers.
        image: side in pixels.
        patch: side in pixels.
        width, depth, heads: of the encoder.
        layer_scale: whether it has layer scale, as DINOv2.
        classes: of the classifier.
    """

    name: str
    image: int
    patch: int
    width: int
    heads: int
    depth: int = 12
    layer_scale: bool = False
    classes: int = 1000

    @property
    def title(self) -> str:
        return f"{self.name} at {self.image:,} px"

    @property
    def tokens(self) -> int:
        """Patches and the CLS token."""
        return (self.image // self.patch) ** 2 + 1

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing(self.image, self.image, (0.5,) * 3, (0.5,) * 3, "squash")

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.classes)))

    @property
    def config(self) -> ViTConfig:
        """Without layer scales, which are merged into the weights before them when a checkpoint is read."""
        return ViTConfig(
            image_height=self.image,
            image_width=self.image,
            patch_height=self.patch,
            patch_width=self.patch,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            head_width=self.width // self.heads,
            mlp_width=4 * self.width,
            classes=self.classes,
        )

    def at(self, image: int) -> Shape:
        """The same model for images of another side."""
        return replace(self, image=image)

    def stand_in(self) -> Shape:
        """A tiny network for small images, to try out a measurement; its numbers mean nothing."""
        image = self.patch * max(2, self.image // self.patch // 4)
        return replace(self, name=f"tiny {self.name}", image=image, width=64, heads=2, depth=2)


TI_16 = Shape("Ti/16", 224, 16, 192, 3)
S_16 = Shape("S/16", 224, 16, 384, 6)
B_16 = Shape("B/16", 224, 16, 768, 12)
L_16 = Shape("L/16", 224, 16, 1024, 16, depth=24)
S_14 = Shape("S/14", 518, 14, 384, 6)
# timm's vit_base_patch14_dinov2, with a classifier.
B_14 = Shape("B/14", 518, 14, 768, 12, layer_scale=True)
L_14 = Shape("L/14", 518, 14, 1024, 16, depth=24)
S_8 = Shape("S/8", 224, 8, 384, 6)


def package(name: str) -> Any:
    """A package, imported without its warnings, beside any build of torchvision."""
    if find_spec("torchvision") is not None:
        importlib.import_module("tests.torchvision_names")
    return quiet(lambda: importlib.import_module(name))


def quiet(make: Callable[[], Any]) -> Any:
    """The result of a function that imports or makes what warns about itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def random_network(
    make: Callable[[], nn.Module], device: torch.device = CPU, sharp_width: int | None = None, seed: int = 0
) -> Any:
    """A network with random weights, made on a device.

    Args:
        make: makes the network.
        device: where.
        sharp_width: the network's width, if attention is to be about as far from even as in a trained network.
        seed: of the weights.
    """
    with device:
        torch.manual_seed(seed)
        network = quiet(make).eval().requires_grad_(False)
        for name, parameter in network.named_parameters() if sharp_width else ():
            if parameter.ndim == 2 and any(part in name for part in ("qkv", "query", "key")):
                nn.init.normal_(parameter, std=(2 / sharp_width) ** 0.5)
    return network


def vitviz_model(
    shape: Shape, device: torch.device = CPU, precision: str = "float32", is_sharp: bool = True, seed: int = 0
) -> Model:
    network = random_network(lambda: VisionTransformer(shape.config), device, shape.width if is_sharp else None, seed)
    return Model(shape.name, network.set_precision(precision), shape.preprocessing, shape.labels)


def transformers_model(shape: Shape, attention: str, device: torch.device = CPU) -> Any:
    """A ViT of transformers; ``attention`` is ``"sdpa"``, or ``"eager"`` for one that returns its weights."""
    transformers = package("transformers")
    config = transformers.ViTConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.depth,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        image_size=shape.image,
        patch_size=shape.patch,
        num_labels=shape.classes,
        attn_implementation=attention,
    )
    return random_network(lambda: transformers.ViTForImageClassification(config), device, shape.width)


def own_network_of(module: nn.Module, shape: Shape, **options: Any) -> Model:
    """vitviz's own network with the weights of a package's module."""
    facts: dict[str, Any] = {"heads": shape.heads, "activation": "gelu", "pooling": "cls", "norm_epsilon": 1e-6}
    with TemporaryDirectory() as folder:
        if hasattr(module, "save_pretrained"):
            module.save_pretrained(folder)
            return load(folder, **options)
        torch.save(module.state_dict(), file := Path(folder, "model.pth"))
        return load(file, image_size=shape.image, **facts, **options)


def timm_model(shape: Shape, device: torch.device = CPU) -> Any:
    make = package("timm").models.VisionTransformer
    options = {"embed_dim": shape.width, "depth": shape.depth, "num_heads": shape.heads, "num_classes": shape.classes}
    scale = 1.0 if shape.layer_scale else None
    return random_network(lambda: make(shape.image, shape.patch, init_values=scale, **options), device, shape.width)
