"""Random configurations of transformers, saved by ``save_pretrained``, with the file of their image processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.parity.case import randomised
from tests.parity.random_draws import Case, Draw, Drawn, at_times, few, optional, together
from tests.parity.reference_models import of_transformers
from tests.reference_packages import transformers

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 8, "image_size": 32}
MLP = {"intermediate_size": 48}
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
TEXT |= {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}

# Class, configuration, image processor.
VIT = {
    "ViTForImageClassification": ("ViTConfig", "ViT"),
    "ViTModel": ("ViTConfig", "ViT"),
    "ViTForMaskedImageModeling": ("ViTConfig", "ViT"),
    "DeiTForImageClassification": ("DeiTConfig", "DeiT"),
    "DeiTForImageClassificationWithTeacher": ("DeiTConfig", "DeiT"),
    "DeiTModel": ("DeiTConfig", "DeiT"),
    "ViTMAEModel": ("ViTMAEConfig", "ViT"),
    "ViTMAEForPreTraining": ("ViTMAEConfig", "ViT"),
    "ViTMSNModel": ("ViTMSNConfig", "ViT"),
    "ViTMSNForImageClassification": ("ViTMSNConfig", "ViT"),
    "IJepaModel": ("IJepaConfig", "ViT"),
    "IJepaForImageClassification": ("IJepaConfig", "ViT"),
}
DINOV2 = {
    "Dinov2Model": ("Dinov2Config", "Bit"),
    "Dinov2ForImageClassification": ("Dinov2Config", "Bit"),
    "Dinov2WithRegistersModel": ("Dinov2WithRegistersConfig", "Bit"),
    "Dinov2WithRegistersForImageClassification": ("Dinov2WithRegistersConfig", "Bit"),
}
DINOV3 = {"DINOv3ViTModel": ("DINOv3ViTConfig", "DINOv3ViT")}
CLIP = {
    "CLIPVisionModel": ("CLIPVisionConfig", "CLIP"),
    "CLIPVisionModelWithProjection": ("CLIPVisionConfig", "CLIP"),
    "SiglipVisionModel": ("SiglipVisionConfig", "Siglip"),
    "Siglip2VisionModel": ("Siglip2VisionConfig", "Siglip2"),
}
WHOLE = {
    "CLIPModel": ("CLIPConfig", "CLIP"),
    "CLIPForImageClassification": ("CLIPConfig", "CLIP"),
    "SiglipModel": ("SiglipConfig", "Siglip"),
    "SiglipForImageClassification": ("SiglipConfig", "Siglip"),
    "Siglip2Model": ("Siglip2Config", "Siglip2"),
    "Siglip2ForImageClassification": ("Siglip2Config", "Siglip2"),
}
KINDS = {**VIT, **DINOV2, **DINOV3, **CLIP, **WHOLE}

HEADS = st.tuples(st.integers(1, 5), st.sampled_from([4, 8, 12, 16, 32, 64])).map(
    lambda pair: {"num_attention_heads": pair[0], "hidden_size": pair[0] * pair[1]}
)
# Every one of ACT2FN that is a plain function.
COMMON_ACTIVATIONS = ["gelu", "relu", "silu", "quick_gelu", "gelu_pytorch_tanh", "gelu_new"]
RARE_ACTIVATIONS = ["gelu_fast", "gelu_python", "gelu_10", "mish", "relu2", "tanh", "sigmoid", "swish", "laplace"]
COMMON = {
    "num_hidden_layers": st.integers(1, 3),
    "hidden_act": st.sampled_from(COMMON_ACTIVATIONS),
    "layer_norm_eps": st.sampled_from([1e-12, 1e-6, 1e-5, 1e-3]),
    "num_channels": st.sampled_from([1, 3, 3, 3]),
    "image_size": st.sampled_from([32, 24, 16, 40, 30]),
    "patch_size": st.sampled_from([8, 4, 16, 7]),
    "initializer_range": st.just(0.1),
    "num_labels": st.sampled_from([1, 3, 7]),
}
WIDER = {"intermediate_size": st.sampled_from([8, 48, 50, 128])}
OBLONG = {"image_size": st.just([24, 40]), "patch_size": st.just([8, 4])}
VIT_ONLY = {
    **WIDER,
    "qkv_bias": st.booleans(),
    "encoder_stride": st.just(8),
    "hidden_dropout_prob": st.just(0.1),
    "attention_probs_dropout_prob": st.just(0.1),
}
POOLER = {"pooler_output_size": st.sampled_from([16, 40]), "pooler_act": st.sampled_from(["tanh", "gelu", "relu"])}
DINOV2_ONLY = {
    "mlp_ratio": st.integers(1, 5),
    "qkv_bias": st.booleans(),
    "use_swiglu_ffn": st.booleans(),
    "layerscale_value": st.sampled_from([1.0, 1e-5]),
    "drop_path_rate": st.just(0.1),
    "apply_layernorm": st.booleans(),
    "reshape_hidden_states": st.booleans(),
}
DINOV3_ONLY = {
    **WIDER,
    **{f"{part}_bias": st.booleans() for part in ("query", "key", "value", "proj", "mlp")},
    "use_gated_mlp": st.booleans(),
    "num_register_tokens": st.integers(0, 4),
    "rope_theta": st.sampled_from([100.0, 10.0, 10000.0]),
    "layerscale_value": st.just(1e-5),
    "pos_embed_rescale": st.sampled_from([2.0, 1.0]),
    "pos_embed_shift": st.just(0.1),
    "apply_layernorm": st.booleans(),
}
CLIP_ONLY = {**WIDER, "attention_dropout": st.just(0.1)}
RARE = {"hidden_act": st.sampled_from(RARE_ACTIVATIONS), "num_channels": st.sampled_from([2, 4])}

STATISTICS = {
    "image_mean": st.sampled_from([[0.5, 0.5, 0.5], [0.1, 0.2, 0.3]]),
    "image_std": st.sampled_from([[0.5, 0.5, 0.5], [0.3, 0.2, 0.4]]),
    "resample": st.sampled_from([0, 2, 3, 2, 3, 1]),
    "do_normalize": st.booleans(),
    "sharded": st.just(True),
    "pil": st.just(True),
}
RESIZED = {
    **STATISTICS,
    "do_resize": st.sampled_from([True, True, True, False]),
    "do_rescale": st.sampled_from([True, True, True, False]),
    "rescale_factor": st.sampled_from([1 / 255, 1 / 127.5]),
}


def draws(kinds: dict[str, Any], options: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Draw]:
    plain = together(at_times(HEADS, 2), optional(**COMMON), options, at_times(few(RARE, 1), 5))
    files = together(optional(**STATISTICS), at_times(few(RESIZED), 6))
    return st.builds(Draw, st.sampled_from(sorted(kinds)), plain, files)


EVERY = st.one_of(
    draws(VIT, together(optional(**VIT_ONLY), at_times(few(POOLER), 4))),
    draws(VIT, together(optional(**VIT_ONLY), at_times(few(OBLONG), 4))),
    draws(DINOV2, optional(**DINOV2_ONLY)),
    draws(DINOV3, optional(**DINOV3_ONLY)),
    draws(CLIP, optional(**CLIP_ONLY, vision_use_head=st.booleans(), projection_dim=st.just(24))),
    draws(WHOLE, optional(**CLIP_ONLY)),
)


def make(draw: Draw, folder: Path) -> Case:
    config_name, processor = KINDS[draw.kind]
    config_class = getattr(transformers, config_name)
    given = {**SMALL, **({} if "Dinov2" in config_name else MLP), **draw.options}
    labels = {"num_labels": given.pop("num_labels")} if "num_labels" in given else {}
    size = given["image_size"]
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if "Siglip2" in config_name:
        patch = given["patch_size"]
        sides = tuple(side // patch * patch for side in sides)
        given["num_patches"] = (given.pop("image_size") // patch) ** 2
    known = set(inspectable(config_class))
    if draw.kind in WHOLE:
        projection = {"projection_dim": 24} if draw.kind.startswith("CLIP") else {}
        config = config_class(vision_config=given, text_config=TEXT, **projection, **labels)
        config.vision_config._attn_implementation = "eager"
    else:
        config = config_class(**{name: value for name, value in given.items() if name in known}, **labels)
    config._attn_implementation = "eager"
    network = randomised(getattr(transformers, draw.kind)(config))
    files = dict(draw.files)
    sharded = {"max_shard_size": "20KB"} if files.pop("sharded", False) else {}
    network.save_pretrained(folder, **sharded)
    if hasattr(config, "mask_ratio"):
        # It is for pretraining: without it the encoder sees the whole picture.
        config.mask_ratio = 0.0
    channels = given.get("num_channels", 3)
    for name in ("image_mean", "image_std"):
        if name in files:
            files[name] = (files[name] * 2)[:channels]
        elif channels != 3:
            files[name] = [0.5] * channels
    sizes: dict[str, Any] = {"size": {"height": sides[0], "width": sides[1]}}
    if processor in ("Bit", "CLIP"):
        sizes = {"size": {"shortest_edge": min(sides)}, "crop_size": {"height": sides[0], "width": sides[1]}}
    if processor == "DeiT":
        sizes["crop_size"] = sizes["size"]
    if processor == "Siglip2":
        patch = given["patch_size"]
        sizes = {"patch_size": patch, "max_num_patches": sides[0] * sides[1] // patch**2}
    if channels == 1 and processor in ("Bit", "CLIP", "Siglip", "Siglip2"):
        files["do_convert_rgb"] = False
    # Whatever wrote the file, the class that reads it is the one with torchvision, where that is installed.
    backend = "Pil" if files.pop("pil", False) and processor != "DINOv3ViT" else ""
    getattr(transformers, f"{processor}ImageProcessor{backend}")(**sizes, **files).save_pretrained(folder)
    return Case(of_transformers(network, folder), sides, channels)


def inspectable(config_class: type) -> list[str]:
    """The fields of a configuration."""
    return [name for cls in config_class.__mro__ for name in getattr(cls, "__annotations__", {})]


TRANSFORMERS = Drawn(EVERY, make, least_exact=0.75)
