"""Architectures outside of vitviz's families, with a short description for messages.

They are recognised by the keys of a checkpoint, by its ``model_type``, or by the file that defines a module's class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

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
        modules: names of the files that define it in timm, and in transformers (without ``modeling_``), where they are
            also its ``model_type``.
        keys: patterns of keys that only this architecture has; only digits may repeat without bound.
        absent_keys: patterns of keys that it never has beside them.
        module_opens: whether vitviz can usually open a module of it in memory.
    """

    title: str
    description: str
    modules: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    module_opens: bool = False
    absent_keys: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Such as ``"Swin: hierarchical, windows"``."""
        return f"{self.title}: {self.description}"


_ATTENTION = r"att(?:entio)?n\.(?:self\.)?"
VITAMIN = "vitamin"
HYBRID = Architecture(
    "a hybrid of ResNet and ViT",
    "patches that are features of a convolutional network",
    ("vision_transformer_hybrid", "vit_hybrid"),
    (r"conv_root/kernel", r"patch_embed\.backbone\.", r"embeddings\.hybrid_model\."),
)
ARCHITECTURES = (
    Architecture(
        "Swin V2",
        WINDOWS,
        ("swinv2", "swin_transformer_v2", "swin_transformer_v2_cr"),
        (r"\.cpb_mlp\.", r"continuous_position_bias_mlp", r"\.meta_mlp\."),
        module_opens=True,
    ),
    Architecture(
        "Swin",
        WINDOWS,
        ("swin", "swin_transformer", "maskformer_swin", "donut_swin"),
        (rf"layers\.\d+\.blocks\.\d+\.{_ATTENTION}relative_position_bias_table",),
        module_opens=True,
    ),
    Architecture("Swin2SR", "windows, on a picture that it makes larger", ("swin2sr",)),
    Architecture("MViT", COARSE_KEYS, ("mvitv2",), (r"\.pool_q\.",)),
    Architecture(
        "NaFlexViT", "patches of pictures of any shape", ("naflexvit",), (r"^embeds\.proj\.",), module_opens=True
    ),
    Architecture(
        "CaiT",
        "talking heads, which mix the scores of all heads before the softmax and the weights behind it, so that no "
        "head has shares of attention of its own",
        ("cait",),
        (r"attn\.proj_l\.", r"blocks_token_only\."),
    ),
    Architecture(
        "ConViT",
        "gates, which mix attention with weights of positions behind the softmax",
        ("convit",),
        (r"attn\.gating_param",),
    ),
    Architecture(
        "XCiT",
        "attention between channels, none between patches",
        ("xcit",),
        (r"cls_attn_blocks\.",),
    ),
    Architecture("DaViT", f"{WINDOWS}, and attention between channels", ("davit",), (r"\.cpe1\.proj\.",)),
    Architecture("CoaT", f"{HIERARCHICAL}, attention without weights from patch to patch", ("coat",), (r"cpe3\.",)),
    Architecture("CrossViT", "two branches with patches of two sizes", ("crossvit",), ("cls_token_0",)),
    Architecture("TNT", "attention inside of patches, and between them", ("tnt",), ("pixel_pos", r"norm1_proj\.")),
    Architecture(
        "VOLO",
        "outlook attention, whose weights come from a patch alone, without keys",
        ("volo",),
        (r"aux_head\.", r"network\.\d+\.\d+\.attn\."),
    ),
    Architecture(
        "PVT, SegFormer or Twins",
        COARSE_KEYS,
        ("pvt", "pvt_v2", "segformer", "glpn", "twins"),
        (rf"{_ATTENTION}sr\.", r"pos_block\.\d+\.proj\."),
    ),
    Architecture("CvT", COARSE_KEYS, ("cvt",), (r"convolution_projection_query",)),
    Architecture(
        "SAM 2's Hiera",
        WINDOWS,
        ("hieradet_sam2", "sam2"),
        ("pos_embed_window",),
        module_opens=True,
    ),
    # Its first block keeps the width, so that it has no such map.
    Architecture(
        "Hiera",
        WINDOWS,
        ("hiera",),
        (r"(?:^|\.)blocks\.[1-9]\d*\.proj\.",),
        module_opens=True,
        absent_keys=(r"(?:^|\.)blocks\.0\.proj\.",),
    ),
    Architecture("PiT", HIERARCHICAL, ("pit",), (r"transformers\.\d+\.blocks\.\d+\.",), module_opens=True),
    Architecture(
        "NesT",
        WINDOWS,
        ("nest",),
        (r"levels\.\d+\.transformer_encoder\.",),
        module_opens=True,
    ),
    Architecture(
        "GCViT",
        f"{WINDOWS}, queries that stand for the whole picture",
        ("gcvit",),
        (r"stem\.down\.reduction\.", "global_block"),
    ),
    Architecture("Visformer", CONVOLUTIONS, ("visformer",), (r"(?:^|\.)stage3\.\d+\.norm2\.",), True),
    Architecture("ViTamin", CONVOLUTIONS, (VITAMIN,), (r"mlp\.w0\.",)),
    Architecture(
        "LeViT, TinyViT or EfficientFormer",
        CONVOLUTIONS,
        ("levit", "tiny_vit", "efficientformer", "efficientformer_v2"),
        ("attention_biases",),
        module_opens=True,
    ),
    Architecture("MobileViT", CONVOLUTIONS, ("mobilevit", "mobilevitv2"), (r"conv_fusion\.", r"attn\.qkv_proj\.")),
    Architecture("MaxViT or CoAtNet", f"{WINDOWS}, convolutions between its layers", ("maxxvit",), (r"attn_block\.",)),
    Architecture("EdgeNeXt", "attention between channels", ("edgenext",), (r"\.xca\.",)),
    HYBRID,
    Architecture(
        "BEiT",
        "attention with relative position biases",
        ("beit", "data2vec_vision", "data2vec"),
        ("relative_position_bias_table", r"relative_position_bias\.", r"\.rel_pos\.mlp\.", r"shared_rel_pos\."),
        module_opens=True,
    ),
    Architecture(
        "SAM or MViT",
        "attention with relative position biases, in windows",
        ("sam", "vision_transformer_sam"),
        ("rel_pos_h",),
        module_opens=True,
    ),
    Architecture("GroupViT", "groups that patches are assigned to, on several levels", ("groupvit",)),
    Architecture(
        "Mllama's tower",
        "four tiles to a picture, those that are empty filled up with tokens that get attention, too",
        ("mllama",),
    ),
    Architecture("TimeSformer", VIDEO, ("timesformer",), (r"temporal_attention\.",)),
    Architecture("X-CLIP", VIDEO, ("x_clip",)),
    Architecture("SegGPT", "two pictures, one below the other, with a mask to each", ("seggpt",)),
    Architecture("a network for masks", MASKS, ("mask2former", "maskformer", "oneformer", "eomt", "eomt_dinov3")),
    Architecture("a detector", MASKS, ("rf_detr", "lw_detr", "grounding_dino", "mm_grounding_dino")),
    Architecture("MAE", "a random part of the patches, in random order", ("vit_mae",)),
    Architecture("FocalNet", f"{NO_ATTENTION}, focal modulation", ("focalnet",), (r"\.modulation\.",)),
    Architecture("PoolFormer", NO_ATTENTION, ("poolformer", "metaformer"), (r"layer_scale1\.scale",)),
    Architecture("MLP-Mixer", NO_ATTENTION, ("mlp_mixer",), (r"mlp_tokens\.",)),
    Architecture("an EfficientNet or MobileNet", NO_ATTENTION, ("efficientnet", "mobilenetv3"), (r"conv_head\.",)),
    Architecture("a ConvNeXt", NO_ATTENTION, ("convnext", "convnextv2"), (r"downsample_layers\.0\.0\.", "conv_dw")),
    Architecture("a ResNet", NO_ATTENTION, ("resnet",), (r"layer1\.0\.conv1\.",)),
    Architecture(
        "FastViT, RepViT, Next-ViT or EfficientViT", CONVOLUTIONS, ("fastvit", "repvit", "nextvit"), (r"stem\.\d+\.",)
    ),
)


def architecture_of_keys(keys: Iterable[str]) -> Architecture | None:
    """The architecture with such keys; None if :data:`ARCHITECTURES` has none."""
    all_keys = list(keys)
    for architecture in ARCHITECTURES:
        search, absent = _pattern(architecture.keys), _pattern(architecture.absent_keys)
        is_other = absent is not None and any(absent.search(key) for key in all_keys)
        if search is not None and not is_other and any(search.search(key) for key in all_keys):
            return architecture
    return None


def architecture_by_name(name: object) -> Architecture | None:
    """The architecture of a file of timm or transformers, or of a ``model_type``."""
    return next((each for each in ARCHITECTURES if name in each.modules), None)


def architecture_of_module(module: nn.Module) -> Architecture | None:
    """The architecture of a module, by the file that defines its class or a base class; None for an unknown one.

    A hybrid of timm is recognised by the network whose features are its patches.
    """
    backbone = getattr(getattr(module, "patch_embed", None), "backbone", None)
    if isinstance(backbone, nn.Module):
        return architecture_by_name(_defining_file(backbone)) if _defining_file(backbone) == VITAMIN else HYBRID
    return architecture_by_name(_defining_file(module))


def _defining_file(module: nn.Module) -> str | None:
    """The file of timm or transformers that defines a module's class or its next base class; None without one."""
    for cls in type(module).__mro__:
        package, _, path = cls.__module__.partition(".")
        if package in ("timm", "transformers"):
            return path.rpartition(".")[2].removeprefix("modeling_")
    return None


@cache
def _pattern(keys: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(keys)) if keys else None
