"""Random configurations of open_clip, in folders as open_clip writes them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.parity.case import randomised
from tests.parity.random_draws import Case, Draw, Drawn, at_times, few, optional, together
from tests.parity.reference_models import of_open_clip
from tests.reference_packages import open_clip, timm

SMALL = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 8}
TEXT = {"context_length": 8, "vocab_size": 40, "width": 16, "heads": 2, "layers": 1}
WHOLE = ("quick_gelu", "embed_dim", "custom_text", "init_logit_scale", "init_logit_bias")

PLAIN = {
    "layers": st.integers(1, 3),
    "mlp_ratio": st.sampled_from([4.0, 1.0, 2.0, 1.5, 2.6667, 4.3637]),
    "patch_size": st.sampled_from([8, 4, 16, [8, 4], 7]),
    "image_size": st.sampled_from([32, 16, [24, 40], 48, 30]),
    "ls_init_value": st.sampled_from([1e-5, 0.1]),
    "no_ln_pre": st.booleans(),
    "final_ln_after_pool": st.booleans(),
    "pool_type": st.sampled_from(["tok", "avg"]),
    "patch_dropout": st.sampled_from([0.0, 0.5]),
    "output_tokens": st.booleans(),
    "norm_kwargs": st.sampled_from([{"eps": 1e-6}, {"eps": 1e-3}, {}]),
    "quick_gelu": st.booleans(),
    "embed_dim": st.sampled_from([24, 7, 32]),
    "custom_text": st.booleans(),
    "init_logit_bias": st.just(-10.0),
}
STRANGE = {
    "attentional_pool": st.sampled_from([True, "parallel", "cascade"]),
    "pos_embed_type": st.sampled_from(["learnable", "sin_cos_2d"]),
    "pool_type": st.sampled_from(["none", "avg_all"]),
    "act_kwargs": st.sampled_from([{"approximate": "tanh"}, {"approximate": "none"}]),
    "norm_kwargs": st.just({"elementwise_affine": True}),
    "block_type": st.sampled_from(["default", "custom"]),
    "qk_norm": st.just(True),
    "scaled_cosine_attn": st.just(True),
    "scale_heads": st.just(True),
    "scale_attn_inner": st.just(True),
    "scale_attn": st.just(True),
    "scale_fc": st.just(True),
}
# Its adapter around timm's models: these keep their own sizes.
TOWERS = (
    *("test_vit", "test_vit2", "test_vit3", "test_vit4", "vit_tiny_patch16_224", "deit_tiny_patch16_224"),
    *("vit_wee_patch16_reg1_gap_256", "vit_little_patch16_reg1_gap_256", "vit_dwee_patch16_reg1_gap_256"),
    *("deit_tiny_distilled_patch16_224", "vit_small_patch32_224", "vit_small_patch16_dinov3", "flexivit_small"),
    *("eva02_tiny_patch14_224", "vit_small_patch14_dinov2", "deit3_small_patch16_224", "resnet18"),
)
TOWER = {
    "timm_pool": st.sampled_from(["token", "avg", "map", "", "max", "abs_attn", "rot_attn"]),
    "timm_proj": st.sampled_from(["linear", "none", "", "mlp"]),
    "timm_proj_bias": st.booleans(),
    "timm_drop": st.sampled_from([0.0, 0.1]),
    "timm_drop_path": st.sampled_from([0.0, 0.1]),
    "timm_model_pretrained": st.just(False),
    # Of a tower of open_clip's own: the adapter does not read them.
    "layers": st.integers(1, 3),
    "width": st.sampled_from([64, 512]),
}
WIDTHS = st.tuples(st.integers(1, 5), st.sampled_from([4, 8, 10, 16, 24, 64])).map(
    lambda pair: {"width": pair[0] * pair[1], "head_width": pair[1]}
)
FILES = optional(
    mean=st.sampled_from([[0.5, 0.5, 0.5], [0.1, 0.2, 0.3]]),
    std=st.sampled_from([[0.5, 0.5, 0.5], [0.3, 0.2, 0.4]]),
    interpolation=st.sampled_from(["bicubic", "bilinear", "random"]),
    resize_mode=st.sampled_from(["shortest", "squash", "longest"]),
    fill_color=st.sampled_from([0, 7]),
    safe=st.just(True),
)


def make(draw: Draw, folder: Path) -> Case:
    whole = {"embed_dim": 24, **{name: value for name, value in draw.options.items() if name in WHOLE}}
    tower = {name: value for name, value in draw.options.items() if name not in WHOLE}
    if draw.kind == "CLIP":
        vision = {**SMALL, **tower}
    else:
        vision = {"timm_model_name": draw.kind, "image_size": timm.get_pretrained_cfg(draw.kind).input_size[1], **tower}
    cfg = {**whole, "vision_cfg": vision, "text_cfg": dict(TEXT)}
    arguments = {name: value for name, value in cfg.items() if name != "custom_text"}
    custom = cfg.get("custom_text", False)
    model = randomised((open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**arguments))
    files = dict(draw.files)
    safe = files.pop("safe", False)
    # As open_clip does when it makes a model from a configuration.
    preprocess = {"mean": list(open_clip.OPENAI_DATASET_MEAN), "std": list(open_clip.OPENAI_DATASET_STD), **files}
    model.visual.preprocess_cfg = {**preprocess, "size": vision["image_size"]}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": cfg, "preprocess_cfg": preprocess}))
    state = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    if safe:
        save_file(state, folder / "open_clip_model.safetensors")
    else:
        torch.save(state, folder / "open_clip_pytorch_model.bin")
    size = vision["image_size"]
    return Case(of_open_clip(model.visual), (size, size) if isinstance(size, int) else tuple(size))


OWN = st.builds(
    Draw, st.just("CLIP"), together(at_times(WIDTHS, 2), optional(**PLAIN), at_times(few(STRANGE), 4)), FILES
)
ADAPTED = st.builds(
    Draw,
    st.sampled_from(TOWERS),
    optional(**TOWER, embed_dim=PLAIN["embed_dim"], quick_gelu=PLAIN["quick_gelu"]),
    FILES,
)
# They cannot be made small: one in ten.
OPEN_CLIP = Drawn(st.integers(1, 10).flatmap(lambda number: ADAPTED if number == 10 else OWN), make, least_exact=0.7)
