"""Architectures outside of vitviz's families, with a short description for messages.

They are recognised by the file that defines a module's class.
"""

from __future__ import annotations

from torch import nn

HIERARCHICAL = "hierarchical"
WINDOWS = f"{HIERARCHICAL}, windows"
COARSE_KEYS = f"{HIERARCHICAL}, keys of a coarser grid than the queries'"
CONVOLUTIONS = f"{HIERARCHICAL}, convolutions that mix patches between its layers"
NO_ATTENTION = "no attention"
VIDEO = "attention over space and over time in turns"
MASKS = "a decoder of masks or boxes behind another network"
VITAMIN = "vitamin"
HYBRID = "a hybrid of ResNet and ViT: patches that are features of a convolutional network"
ARCHITECTURES = {
    f"Swin V2: {WINDOWS}": ("swinv2", "swin_transformer_v2", "swin_transformer_v2_cr"),
    f"Swin: {WINDOWS}": ("swin", "swin_transformer", "maskformer_swin", "donut_swin"),
    "Swin2SR: windows, on a picture that it makes larger": ("swin2sr",),
    f"MViT: {COARSE_KEYS}": ("mvitv2",),
    "NaFlexViT: patches of pictures of any shape": ("naflexvit",),
    "CaiT: talking heads, which mix the scores of all heads before the softmax and the weights behind it, so that no "
    "head has shares of attention of its own": ("cait",),
    "ConViT: gates, which mix attention with weights of positions behind the softmax": ("convit",),
    "XCiT: attention between channels, none between patches": ("xcit",),
    f"DaViT: {WINDOWS}, and attention between channels": ("davit",),
    f"CoaT: {HIERARCHICAL}, attention without weights from patch to patch": ("coat",),
    "CrossViT: two branches with patches of two sizes": ("crossvit",),
    "TNT: attention inside of patches, and between them": ("tnt",),
    "VOLO: outlook attention, whose weights come from a patch alone, without keys": ("volo",),
    f"PVT, SegFormer or Twins: {COARSE_KEYS}": ("pvt", "pvt_v2", "segformer", "glpn", "twins"),
    f"CvT: {COARSE_KEYS}": ("cvt",),
    f"SAM 2's Hiera: {WINDOWS}": ("hieradet_sam2", "sam2"),
    f"Hiera: {WINDOWS}": ("hiera",),
    f"PiT: {HIERARCHICAL}": ("pit",),
    f"NesT: {WINDOWS}": ("nest",),
    f"GCViT: {WINDOWS}, queries that stand for the whole picture": ("gcvit",),
    f"Visformer: {CONVOLUTIONS}": ("visformer",),
    f"ViTamin: {CONVOLUTIONS}": (VITAMIN,),
    f"LeViT, TinyViT or EfficientFormer: {CONVOLUTIONS}": (
        "levit",
        "tiny_vit",
        "efficientformer",
        "efficientformer_v2",
    ),
    f"MobileViT: {CONVOLUTIONS}": ("mobilevit", "mobilevitv2"),
    f"MaxViT or CoAtNet: {WINDOWS}, convolutions between its layers": ("maxxvit",),
    "EdgeNeXt: attention between channels": ("edgenext",),
    HYBRID: ("vision_transformer_hybrid", "vit_hybrid"),
    "BEiT: attention with relative position biases": ("beit", "data2vec_vision", "data2vec"),
    "SAM or MViT: attention with relative position biases, in windows": ("sam", "vision_transformer_sam"),
    "GroupViT: groups that patches are assigned to, on several levels": ("groupvit",),
    "Mllama's tower: four tiles to a picture, those that are empty filled up with tokens that get attention, too": (
        "mllama",
    ),
    f"TimeSformer: {VIDEO}": ("timesformer",),
    f"X-CLIP: {VIDEO}": ("x_clip",),
    "SegGPT: two pictures, one below the other, with a mask to each": ("seggpt",),
    f"a network for masks: {MASKS}": ("mask2former", "maskformer", "oneformer", "eomt", "eomt_dinov3"),
    f"a detector: {MASKS}": ("rf_detr", "lw_detr", "grounding_dino", "mm_grounding_dino"),
    "MAE: a random part of the patches, in random order": ("vit_mae",),
    f"FocalNet: {NO_ATTENTION}, focal modulation": ("focalnet",),
    f"PoolFormer: {NO_ATTENTION}": ("poolformer", "metaformer"),
    f"MLP-Mixer: {NO_ATTENTION}": ("mlp_mixer",),
    f"an EfficientNet or MobileNet: {NO_ATTENTION}": ("efficientnet", "mobilenetv3"),
    f"a ConvNeXt: {NO_ATTENTION}": ("convnext", "convnextv2"),
    f"a ResNet: {NO_ATTENTION}": ("resnet",),
    f"FastViT, RepViT, Next-ViT or EfficientViT: {CONVOLUTIONS}": ("fastvit", "repvit", "nextvit"),
}
"""What an architecture is, and which files define it in timm, and in transformers (without ``modeling_``)."""


def architecture_of_module(module: nn.Module) -> str | None:
    """What the architecture of a module is (``"Swin: hierarchical, windows"``), by the file that defines its class or a
    base class; None for an unknown one.

    A hybrid of timm is recognised by the network whose features are its patches.
    """
    backbone = getattr(getattr(module, "patch_embed", None), "backbone", None)
    is_hybrid = isinstance(backbone, nn.Module)
    file = _defining_file(backbone if is_hybrid else module)
    if is_hybrid and file != VITAMIN:
        return HYBRID
    return next((sentence for sentence, files in ARCHITECTURES.items() if file in files), None)


def _defining_file(module: object) -> str | None:
    """The file of timm or transformers that defines a module's class or its next base class; None without one."""
    for cls in type(module).__mro__:
        package, _, path = cls.__module__.partition(".")
        if package in ("timm", "transformers"):
            return path.rpartition(".")[2].removeprefix("modeling_")
    return None
