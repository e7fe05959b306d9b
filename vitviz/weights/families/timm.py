"""timm's Vision Transformers (Wightman 2019, "PyTorch Image Models"), and others with its keys: DeiT, MAE, DINO."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from vitviz.errors.kinds import CheckpointError, UnknownFamilyError
from vitviz.errors.messages import choices, plain, quote
from vitviz.weights.conversion.canonical import Family, MatchedCheckpoint, OpenFact, PublishedCheckpoint
from vitviz.weights.families.clip import HARMLESS as HARMLESS_OF_OPEN_CLIP
from vitviz.weights.families.clip import HARMLESS_OF_TOWER, OUTSIDE_OF_TOWER
from vitviz.weights.families.conventions import clip, half, imagenet
from vitviz.weights.families.timm_architectures import TimmArchitecture, architectures, matching_architectures
from vitviz.weights.families.timm_arguments import Arguments, facts_of
from vitviz.weights.families.transformers.classes import COMMON
from vitviz.weights.metadata.rules import PreprocessingRule
from vitviz.weights.metadata.settings import Settings, are_sides

NAMES = {
    "patch_embed.proj": "patch",
    "cls_token": "cls",
    "dist_token": "distillation",
    "reg_token": "registers",
    "pos_embed": "positions",
    "norm_pre": "pre_norm",
    "blocks.*.norm1": "attention_norm",
    "blocks.*.attn.qkv": "qkv",
    "blocks.*.attn.q_bias": "query.bias",
    "blocks.*.attn.v_bias": "value.bias",
    "blocks.*.attn.q_norm": "query_norm",
    "blocks.*.attn.k_norm": "key_norm",
    "blocks.*.attn.proj": "out",
    "blocks.*.ls1.gamma": "attention_scale",
    "blocks.*.gamma_1": "attention_scale",
    "blocks.*.norm2": "mlp_norm",
    "blocks.*.mlp.fc1": "mlp_in",
    "blocks.*.mlp.fc1_g": "gate",
    "blocks.*.mlp.fc1_x": "mlp_in",
    "blocks.*.mlp.fc2": "mlp_out",
    "blocks.*.ls2.gamma": "mlp_scale",
    "blocks.*.gamma_2": "mlp_scale",
    "norm": "norm",
    "fc_norm": "norm",
    "pre_logits.fc": "representation",
    "attn_pool.latent": "pool.probe",
    "attn_pool.q": "pool.query",
    "attn_pool.kv": "pool.key_value",
    "attn_pool.proj": "pool.out",
    "attn_pool.norm": "pool.norm",
    "attn_pool.mlp.fc1": "pool.mlp_in",
    "attn_pool.mlp.fc2": "pool.mlp_out",
    "head": "classifier",
    "head_dist": "distillation_classifier",
    "head.proj": "projection",
}
# The model_type of transformers' wrapper, which keeps timm's keys and configuration.
WRAPPER = "timm_wrapper"
ROTARY = "rotary positions beside learned ones, or of another kind than DINOv3's"
MAE_DECODER = "the decoder with which MAE was pretrained"

SIGNATURES = (
    ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "pos_embed"),
    ("patch_embed.proj.weight", "cls_token", "reg_token", "blocks.0.attn.qkv.weight", "blocks.0.gamma_1"),
)
"""Keys that identify the two families of this module."""

# Names of modules around a model of timm that say nothing about other code: wrappers of torch, and usual attributes.
OWN_PLACES = frozenset(
    (
        *("", "module", "_orig_mod", "model", "net", "network", "vit", "backbone", "encoder", "trunk", "visual", "ema"),
        *("timm_model", "base_model", "model_ema", "ema_model", "features", "feature_extractor", "image_encoder"),
    )
)
# Entries of pretrained_cfg that are not needed: the origin of the weights, and sizes that the weights show.
HARMLESS_CFG = (
    *("url", "file", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag", "custom_load", "license"),
    *("description", "origin_url", "paper_name", "paper_ids", "notes", "num_classes", "pool_size", "test_pool_size"),
    *("first_conv", "classifier", "min_input_size", "test_input_size", "test_crop_pct"),
)
# Words that our names of poolings contain, by timm's names.
POOLINGS = {"token": "cls", "avg": "mean", "map": "attention"}
# Entries of config.json that timm does not read; it reads global_pool from model_args alone.
HARMLESS = ("num_classes", "num_features", "global_pool", "label_names", "label_descriptions", "labels", "library_name")


def timm_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    arguments = _arguments(checkpoint)
    if arguments is not None:
        return {**_check_config(checkpoint, facts_of(arguments)), "transform": arguments.transform}
    return {
        "heads": OpenFact(),
        "norm_epsilon": OpenFact(usual=1e-5 if checkpoint.has("pre_norm.weight") else 1e-6),
        "activation": OpenFact(usual="silu" if _is_gated(checkpoint) else "gelu"),
        "final_norm": _final_norm(checkpoint),
        "pooling": _pooling(checkpoint),
        "transform": _transform(checkpoint),
    }


def dinov3_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    """timm's own layout of DINOv3 (its class Eva)."""
    arguments = _arguments(checkpoint)
    if arguments is not None:
        facts = _check_config(checkpoint, facts_of(arguments))
        return {
            **facts,
            "image_size": _input_size(checkpoint) or facts["image_size"],
            "transform": arguments.transform,
        }
    return {
        "heads": OpenFact(),
        "norm_epsilon": OpenFact(usual=1e-5),
        "activation": "silu" if checkpoint.has("gate.weight") else "gelu",
        "rotary": True,
        "rotary_base": 100.0,
        "pooling": OpenFact(usual="mean"),
        "final_norm": _final_norm(checkpoint),
        "image_size": (256, 256),
    }


def published(checkpoint: MatchedCheckpoint) -> list[PublishedCheckpoint]:
    """timm's architectures with these tensors, and with published weights of the same number of classes."""
    classes = (checkpoint.shape("classifier.weight") or (0,))[0]
    rows = [row for row in _matching_architectures(checkpoint) if classes in (*row.classes, *[0] * bool(row.classes))]
    return [PublishedCheckpoint(f"timm's {row.name}", _architecture_facts(row, checkpoint.name)) for row in rows]


def fitting_architectures(checkpoint: MatchedCheckpoint) -> list[str]:
    """timm's names of architectures that have these tensors, at most three."""
    return [row.name for row in _matching_architectures(checkpoint)][:3]


def _arguments(checkpoint: MatchedCheckpoint) -> Arguments | None:
    """The arguments of the timm model that the configuration or the user names; None without a name.

    Raises:
        CheckpointError: there is no such name, or the tensors are those of models that vitviz does not read.
    """
    config, tower = checkpoint.config, checkpoint.open_clip.inner_or_empty("model_cfg").inner_or_empty("vision_cfg")
    name, place = checkpoint.overrides.get("architecture"), "architecture"
    saved = config.inner("model_args") or Settings({}, "model_args")
    if name is None and "architecture" in config:
        name, place = config.get("architecture"), "architecture in config.json"
    elif name is None and "timm_model_name" in tower:
        name, place = tower.get("timm_model_name"), "timm_model_name in open_clip_config.json"
        saved = _open_clip_arguments(checkpoint.open_clip, tower)
    cfg = config.inner("pretrained_cfg") or config
    if "architecture" in config or cfg is not config:
        cfg.skip(HARMLESS_CFG)
        config.skip((*HARMLESS, "architecture"))
        if config.get("model_type") == WRAPPER:
            config.skip(COMMON | {"do_pooling"})
        cfg.only("label_offset", 0)
    if name is None:
        _refuse_unreadable(checkpoint)
        return None
    # The part after a dot names published weights.
    base, _, tag = name.partition(".") if isinstance(name, str) else ("", "", "")
    row = architectures().get(base)
    if row is None:
        close = get_close_matches(str(name), architectures(), 3)
        matches = [row.name for row in _matching_architectures(checkpoint)]
        expected = (
            f"one of timm's Vision Transformers, such as {choices(matches[:3] or close or ['vit_base_patch16_224'])}"
        )
        raise UnknownFamilyError(f"{checkpoint.name}: {place} = {quote(name)}: expected {expected}")
    if "architecture" not in checkpoint.overrides:
        checkpoint.record("architecture", name, place)
    elif checkpoint.shape("patch.weight")[1:2] == (1,):
        # Like the number of classes, that of channels is no part of a name.
        saved = saved.with_defaults({"in_chans": 1})
    stated_size = _input_size(checkpoint)
    size = stated_size if cfg.flag("fixed_input_size", False) else None if stated_size else row.input_size
    if size and "img_size" not in saved:
        saved = saved.with_defaults({"img_size": list(size)})
    return Arguments(row, saved, checkpoint.name, tag)


def _check_config(checkpoint: MatchedCheckpoint, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of the arguments, checked against the top level of ``config.json`` and the weights.

    timm builds the model without reading the top level; if the two disagree, it is unclear which is meant.
    """
    stated, pooling = checkpoint.config.get("global_pool"), facts["pooling"]
    if "architecture" in checkpoint.config and stated is not None and POOLINGS.get(str(stated), "none") not in pooling:
        legal = [name for name, ours in POOLINGS.items() if ours in pooling]
        raise CheckpointError(
            f"{checkpoint.name}: global_pool = {quote(stated)} in config.json, where its architecture and model_args "
            f"make a model that pools by {choices(legal)}"
        )
    classes, stated_classes = checkpoint.shape("classifier.weight")[:1], checkpoint.config.get("num_classes")
    if "architecture" in checkpoint.config and classes and isinstance(stated_classes, int):
        facts = {**facts, "stated": {**facts["stated"], "classes": stated_classes}}
    architecture = checkpoint.overrides.get("architecture")
    if architecture is not None:
        facts = {**facts, "heads": _settle_heads(checkpoint, facts)}
    final_norm = _final_norm(checkpoint)
    if final_norm != facts["final_norm"]:
        raise CheckpointError(
            f"{checkpoint.name}: its architecture and model_args have the final norm "
            f"{facts['final_norm']!r}, its weights {final_norm!r}"
        )
    if architecture is not None:
        return {**facts, "stated_by": f"architecture {architecture}"}
    return facts


def _settle_heads(checkpoint: MatchedCheckpoint, facts: Mapping[str, Any]) -> int:
    """The heads of the architecture that the user names, or those that the user states for keys of other code.

    Raises:
        CheckpointError: the architecture alone does not settle them.
    """
    usual, stated = facts["heads"], checkpoint.overrides.get("heads")
    named = f"{checkpoint.name}: timm's {plain(checkpoint.overrides['architecture'])} has {usual} heads"
    if OWN_PLACES.issuperset(checkpoint.prefix.split(".")):
        if stated in (None, usual):
            return int(usual)
        others = [f"{fact}={facts[fact]!r}" for fact in ("activation", "norm_epsilon", "pooling")]
        instead = f"heads={stated}, {', '.join(others)} in place of architecture"
        raise CheckpointError(f"{named}, but heads = {stated} is stated, too; expected one of them: {instead}")
    if stated is None:
        place = quote(f"{checkpoint.prefix}…")
        others_code = f"these keys, {place}, are of other code, which may have others in the same shapes"
        raise CheckpointError(
            f"{named}, but {others_code}, as MoCo v3's ViT-S has 12; expected heads=… beside architecture=…"
        )
    return int(stated)


def _open_clip_arguments(open_clip: Settings, tower: Settings) -> Settings:
    """The arguments that open_clip passes to timm."""
    pool, projection = tower.get("timm_pool", "avg"), tower.get("timm_proj", "linear")
    if projection not in ("linear", "none", ""):
        raise tower.refuse("timm_proj", choices(("linear", "none", "")))
    if pool not in ("token", "avg", "map", ""):
        raise tower.refuse("timm_pool", choices(("token", "avg", "map", "")))
    # open_clip uses these sizes for its own towers only; timm's name implies them.
    tower.skip((*HARMLESS_OF_TOWER, "image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio"))
    open_clip.inner_or_empty("model_cfg").skip((*HARMLESS_OF_OPEN_CLIP, "embed_dim", "quick_gelu"))
    if projection != "linear":
        # Without a projection, timm reads an empty pool as none.
        return Settings({"global_pool": pool}, tower.place)
    if not pool:
        return Settings({}, tower.place)
    # With a projection, open_clip changes the pool after timm has created the norms for its default.
    row = architectures().get(str(tower.get("timm_model_name")))
    defaults = row.arguments if row else {}
    return Settings(
        {"global_pool": pool, "fc_norm": defaults.get("fc_norm", defaults.get("global_pool") == "avg")}, tower.place
    )


def _refuse_unreadable(checkpoint: MatchedCheckpoint) -> None:
    """Refuse tensors that only unreadable models have."""
    rows = _matching_architectures(checkpoint)
    reasons = {row.name: _unreadable(row, checkpoint.name) for row in rows}
    if rows and all(reasons.values()):
        raise UnknownFamilyError(str(next(iter(reasons.values()))))
    gated = _is_gated(checkpoint)
    is_eva = (checkpoint.has("query.bias") and gated) or checkpoint.has("gate.weight")
    is_encoder = checkpoint.has("pre_norm.weight") and (
        checkpoint.has("pool.probe") or not checkpoint.has("norm.weight")
    )
    if checkpoint.has("positions") and (is_eva or is_encoder):
        raise UnknownFamilyError(f"{checkpoint.name}: this is a model with {ROTARY}, which vitviz does not read")


def _unreadable(row: TimmArchitecture, name: str) -> CheckpointError | None:
    try:
        facts_of(Arguments(row, Settings({}, "model_args"), name))
    except CheckpointError as error:
        return error
    return None


def _architecture_facts(row: TimmArchitecture, name: str) -> dict[str, Any]:
    """The facts of an architecture; placeholders that agree with no other facts if vitviz cannot read it."""
    if _unreadable(row, name) is not None:
        return dict.fromkeys(("heads", "norm_epsilon", "activation", "pooling"), "what vitviz does not read")
    return facts_of(Arguments(row, Settings({}, "model_args"), name))


def _matching_architectures(checkpoint: MatchedCheckpoint) -> list[TimmArchitecture]:
    tensors, prefix = checkpoint.file.groups[checkpoint.group], checkpoint.prefix
    return matching_architectures(
        {key[len(prefix) :]: tensor.shape for key, tensor in tensors.items() if key.startswith(prefix)}
    )


def _is_gated(checkpoint: MatchedCheckpoint) -> bool:
    return checkpoint.shape("mlp_in.weight")[:1] != checkpoint.shape("mlp_out.weight")[1:]


def _pooling(checkpoint: MatchedCheckpoint) -> Any:
    if checkpoint.has("distillation_classifier.weight"):
        return "cls and distillation"
    if checkpoint.has("pool.probe"):
        return "attention"
    return OpenFact(usual="cls" if checkpoint.has("cls") and _final_norm(checkpoint) != "after pooling" else "mean")


def _final_norm(checkpoint: MatchedCheckpoint) -> str:
    fc_norm = checkpoint.keys.get((None, "norm.weight"), "").endswith("fc_norm.weight")
    return "after pooling" if fc_norm else "before pooling" if checkpoint.has("norm.weight") else "none"


def _transform(checkpoint: MatchedCheckpoint) -> PreprocessingRule:
    """The likeliest preprocessing of a file without a configuration: by its keys, and timm's models of its shapes."""
    scale = checkpoint.keys.get((0, "attention_scale"), "")
    if checkpoint.group == "model" or scale.endswith("gamma_1"):
        return imagenet("DeiT's and MAE's evaluation")
    if checkpoint.has("distillation") or scale:
        usual = imagenet("timm's convention for DeiT and DeiT-III", crop_fraction=0.9)
    elif checkpoint.has("pre_norm.weight"):
        usual = clip("CLIP's preprocessing", crop_fraction=1.0)
    else:
        usual = TIMM.default_transform
    rules = [row.transform() for row in _matching_architectures(checkpoint)]
    alike = [rule for rule in rules if rule.arguments["mean"] == usual.arguments["mean"]]
    for found in (rules, alike):
        if found and all((rule.arguments, rule.size) == (found[0].arguments, found[0].size) for rule in found):
            return found[0]
    return usual


def _input_size(checkpoint: MatchedCheckpoint) -> tuple[int, int] | None:
    size = (checkpoint.config.inner("pretrained_cfg") or checkpoint.config).get("input_size")
    return (size[1], size[2]) if are_sides(size, 3) else None


TIMM = Family(
    name="timm",
    title="timm ViT, DeiT, MAE, SigLIP, CLIP",
    names=NAMES,
    signature=SIGNATURES[0],
    facts=timm_facts,
    published=published,
    architectures=fitting_architectures,
    default_transform=half("timm's convention for AugReg", crop_fraction=0.9),
    ignored={
        "decoder_*": MAE_DECODER,
        "mask_token": MAE_DECODER,
    },
    outside=OUTSIDE_OF_TOWER,
)

DINOV3 = Family(
    name="timm-dinov3",
    title="timm DINOv3",
    names=NAMES,
    signature=SIGNATURES[1],
    excluded_keys=("pos_embed",),
    facts=dinov3_facts,
    published=published,
    architectures=fitting_architectures,
    default_transform=imagenet("DINOv3's model card", crop_fraction=1.0, interpolation="bicubic"),
    outside=OUTSIDE_OF_TOWER,
)

FAMILIES = (DINOV3, TIMM)
