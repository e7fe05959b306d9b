"""Architectures outside of vitviz's families, with a short description for messages.

They are recognised by the file that defines a module's class.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

HIERARCHICAL = "hierarchical"
WINDOWS = f"{HIERARCHICAL}, windows"
COARSE_KEYS = f"{HIERARCHICAL}, keys of a coarser grid than the queries'"
CONVOLUTIONS = f"{HIERARCHICAL}, convolutions that mix patches between its layers"
NO_ATTENTION = "no attention"
VIDEO = "attention over space and over time in turns"
MASKS = "a decoder of masks or boxes behind another network"


@dataclass(frozen=True)
class Architecture:
    """An architecture that messages can name.

    Args:
        title: its name.
        description: how it differs from a plain Vision Transformer.
        modules: names of the files that define it in timm, and in transformers (without ``modeling_``).
    """

    title: str
    description: str
    modules: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Such as ``"Swin: hierarchical, windows"``."""
        return f"{self.title}: {self.description}"


VITAMIN = "vitamin"
HYBRID = Architecture(
    "a hybrid of ResNet and ViT",
    "patches that are features of a convolutional network",
    ("vision_transformer_hybrid", "vit_hybrid"),
)
ARCHITECTURES = (
    Architecture("Swin V2", WINDOWS, ("swinv2", "swin_transformer_v2", "swin_transformer_v2_cr")),
    Architecture("Swin", WINDOWS, ("swin", "swin_transformer", "maskformer_swin", "donut_swin")),
    Architecture("Swin2SR", "windows, on a picture that it makes larger", ("swin2sr",)),
    Architecture("MViT", COARSE_KEYS, ("mvitv2",)),
    Architecture("NaFlexViT", "patches of pictures of any shape", ("naflexvit",)),
    Architecture(
        "CaiT",
        "talking heads, which mix the scores of all heads before the softmax and the weights behind it, so that no "
        "head has shares of attention of its own",
        ("cait",),
    ),
    Architecture("ConViT", "gates, which mix attention with weights of positions behind the softmax", ("convit",)),
    Architecture("XCiT", "attention between channels, none between patches", ("xcit",)),
    Architecture("DaViT", f"{WINDOWS}, and attention between channels", ("davit",)),
    Architecture("CoaT", f"{HIERARCHICAL}, attention without weights from patch to patch", ("coat",)),
    Architecture("CrossViT", "two branches with patches of two sizes", ("crossvit",)),
    Architecture("TNT", "attention inside of patches, and between them", ("tnt",)),
    Architecture("VOLO", "outlook attention, whose weights come from a patch alone, without keys", ("volo",)),
    Architecture("PVT, SegFormer or Twins", COARSE_KEYS, ("pvt", "pvt_v2", "segformer", "glpn", "twins")),
    Architecture("CvT", COARSE_KEYS, ("cvt",)),
    Architecture("SAM 2's Hiera", WINDOWS, ("hieradet_sam2", "sam2")),
    Architecture("Hiera", WINDOWS, ("hiera",)),
    Architecture("PiT", HIERARCHICAL, ("pit",)),
    Architecture("NesT", WINDOWS, ("nest",)),
    Architecture("GCViT", f"{WINDOWS}, queries that stand for the whole picture", ("gcvit",)),
    Architecture("Visformer", CONVOLUTIONS, ("visformer",)),
    Architecture("ViTamin", CONVOLUTIONS, (VITAMIN,)),
    Architecture(
        "LeViT, TinyViT or EfficientFormer",
        CONVOLUTIONS,
        ("levit", "tiny_vit", "efficientformer", "efficientformer_v2"),
    ),
    Architecture("MobileViT", CONVOLUTIONS, ("mobilevit", "mobilevitv2")),
    Architecture("MaxViT or CoAtNet", f"{WINDOWS}, convolutions between its layers", ("maxxvit",)),
    Architecture("EdgeNeXt", "attention between channels", ("edgenext",)),
    HYBRID,
    Architecture("BEiT", "attention with relative position biases", ("beit", "data2vec_vision", "data2vec")),
    Architecture(
        "SAM or MViT", "attention with relative position biases, in windows", ("sam", "vision_transformer_sam")
    ),
    Architecture("GroupViT", "groups that patches are assigned to, on several levels", ("groupvit",)),
    Architecture(
        "Mllama's tower",
        "four tiles to a picture, those that are empty filled up with tokens that get attention, too",
        ("mllama",),
    ),
    Architecture("TimeSformer", VIDEO, ("timesformer",)),
    Architecture("X-CLIP", VIDEO, ("x_clip",)),
    Architecture("SegGPT", "two pictures, one below the other, with a mask to each", ("seggpt",)),
    Architecture("a network for masks", MASKS, ("mask2former", "maskformer", "oneformer", "eomt", "eomt_dinov3")),
    Architecture("a detector", MASKS, ("rf_detr", "lw_detr", "grounding_dino", "mm_grounding_dino")),
    Architecture("MAE", "a random part of the patches, in random order", ("vit_mae",)),
    Architecture("FocalNet", f"{NO_ATTENTION}, focal modulation", ("focalnet",)),
    Architecture("PoolFormer", NO_ATTENTION, ("poolformer", "metaformer")),
    Architecture("MLP-Mixer", NO_ATTENTION, ("mlp_mixer",)),
    Architecture("an EfficientNet or MobileNet", NO_ATTENTION, ("efficientnet", "mobilenetv3")),
    Architecture("a ConvNeXt", NO_ATTENTION, ("convnext", "convnextv2")),
    Architecture("a ResNet", NO_ATTENTION, ("resnet",)),
    Architecture("FastViT, RepViT, Next-ViT or EfficientViT", CONVOLUTIONS, ("fastvit", "repvit", "nextvit")),
)


def architecture_of_module(module: nn.Module) -> Architecture | None:
    """The architecture of a module, by the file that defines its class or a base class; None for an unknown one.

    A hybrid of timm is recognised by the network whose features are its patches.
    """
    backbone = getattr(getattr(module, "patch_embed", None), "backbone", None)
    is_hybrid = isinstance(backbone, nn.Module)
    file = _defining_file(backbone if is_hybrid else module)
    if is_hybrid and file != VITAMIN:
        return HYBRID
    return next((each for each in ARCHITECTURES if file in each.modules), None)


def _defining_file(module: object) -> str | None:
    """The file of timm or transformers that defines a module's class or its next base class; None without one."""
    for cls in type(module).__mro__:
        package, _, path = cls.__module__.partition(".")
        if package in ("timm", "transformers"):
            return path.rpartition(".")[2].removeprefix("modeling_")
    return None
