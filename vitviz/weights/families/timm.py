"""timm's plain Vision Transformers (Wightman 2019, "PyTorch Image Models"), and others with its keys: DeiT, MAE."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from vitviz.errors.kinds import CheckpointError, UnknownFamilyError
from vitviz.errors.messages import choices, plain, quote
from vitviz.weights.conversion.canonical import Family, MatchedCheckpoint, OpenFact, Published
from vitviz.weights.families.timm_architectures import TimmArchitecture, architectures, matching_architectures
from vitviz.weights.metadata.classes import gives_features
from vitviz.weights.metadata.normalisations import CLIP, HALVES, IMAGENET
from vitviz.weights.metadata.rules import PreprocessingRule
from vitviz.weights.metadata.sides import are_sides, both_sides

NAMES = {
    "patch_embed.proj": "patch_embedding",
    "cls_token": "prefix_tokens.cls",
    "dist_token": "prefix_tokens.distillation",
    "reg_token": "prefix_tokens.registers",
    "pos_embed": "positions",
    "norm_pre": "pre_norm",
    "blocks.*.norm1": "layers.*.attention_norm",
    "blocks.*.attn.qkv": "layers.*.attention.qkv",
    "blocks.*.attn.q_norm": "layers.*.attention.query_norm",
    "blocks.*.attn.k_norm": "layers.*.attention.key_norm",
    "blocks.*.attn.proj": "layers.*.attention.projection",
    "blocks.*.ls1.gamma": "layers.*.attention.projection.scale",
    "blocks.*.gamma_1": "layers.*.attention.projection.scale",
    "blocks.*.norm2": "layers.*.mlp_norm",
    "blocks.*.mlp.fc1": "layers.*.mlp.0",
    "blocks.*.mlp.fc2": "layers.*.mlp.2",
    "blocks.*.ls2.gamma": "layers.*.mlp.2.scale",
    "blocks.*.gamma_2": "layers.*.mlp.2.scale",
    "norm": "norm",
    "fc_norm": "norm",
    "pre_logits.fc": "representation.0",
    "attn_pool.latent": "pooler.probe",
    "attn_pool.q": "pooler.query",
    "attn_pool.kv": "pooler.key_value",
    "attn_pool.proj": "pooler.projection",
    "attn_pool.norm": "pooler.mlp_norm",
    "attn_pool.mlp.fc1": "pooler.mlp.0",
    "attn_pool.mlp.fc2": "pooler.mlp.2",
    "head": "classifier",
    "head_dist": "classifier.distilled",
}
SIGNATURE = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "pos_embed")
MAE_DECODER = "the decoder with which MAE was pretrained"
# Names of modules around a model of timm that say nothing about other code: wrappers of torch, and usual attributes.
OWN_PLACES = frozenset(
    (
        *("", "module", "_orig_mod", "model", "net", "network", "vit", "backbone", "encoder", "trunk", "visual", "ema"),
        *("timm_model", "base_model", "model_ema", "ema_model", "features", "feature_extractor", "image_encoder"),
    )
)
# Arguments of an architecture whose values the weights show, or that change nothing in evaluation.
SHOWN = {
    *("num_classes", "in_chans", "embed_dim", "depth", "patch_size", "mlp_ratio", "qkv_bias", "proj_bias", "qk_norm"),
    *("init_values", "pretrained", "pretrained_cfg", "weight_init", "fix_init", "drop_rate", "pos_drop_rate"),
    *("patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "num_heads", "img_size"),
    *("dynamic_img_size",),
}
# timm's names of poolings, which newer releases of it write beside every model.
GLOBAL_POOLS = {"cls": "token", "cls and distillation": "token", "mean": "avg", "attention": "map"}


def timm_facts(checkpoint: MatchedCheckpoint) -> dict[str, Any]:
    """Of the architecture that ``config.json`` or the user names; else open, but for what the keys tell."""
    if gives_features(checkpoint.config, (checkpoint.shape("classifier.weight") or (0,))[0]):
        checkpoint.take_head_for_projection()
    row = _named(checkpoint)
    if row is not None:
        return {**_facts_of(checkpoint, row), "transform": row.transform(str(_name(checkpoint)).partition(".")[2])}
    rows = _matching(checkpoint)
    if rows and not any(row.facts for row in rows):
        raise UnknownFamilyError(f"{checkpoint.name}: timm's {rows[0].name}, which is no plain Vision Transformer")
    gated = checkpoint.shape("layers.*.mlp.0.weight")[:1] != checkpoint.shape("layers.*.mlp.2.weight")[1:]
    return {
        "heads": OpenFact(),
        "norm_epsilon": OpenFact(usual=1e-5 if checkpoint.has("pre_norm.weight") else 1e-6),
        "activation": OpenFact(usual="silu" if gated else "gelu"),
        "final_norm": _final_norm(checkpoint),
        "pooling": _pooling(checkpoint),
        "transform": _transform(checkpoint),
    }


def published(checkpoint: MatchedCheckpoint) -> Published:
    """timm's architectures with these tensors, and with published weights of the same number of classes."""
    classes = (checkpoint.shape("classifier.weight") or (0,))[0]
    rows = [row for row in _matching(checkpoint) if classes in (*row.classes, *[0] * bool(row.classes))]
    unknown = dict.fromkeys(("heads", "norm_epsilon", "activation", "pooling"), "what vitviz does not have")
    return {f"timm's {row.name}": row.facts or unknown for row in rows}


def fitting_architectures(checkpoint: MatchedCheckpoint) -> list[str]:
    """timm's names of architectures that have these tensors, at most three."""
    return [row.name for row in _matching(checkpoint)][:3]


def _name(checkpoint: MatchedCheckpoint) -> Any:
    return checkpoint.overrides.get("architecture", checkpoint.config.get("architecture"))


def _named(checkpoint: MatchedCheckpoint) -> TimmArchitecture | None:
    """The architecture that the configuration or the user names; None without a name.

    Raises:
        UnknownFamilyError: it is none of timm's plain Vision Transformers.
    """
    name = _name(checkpoint)
    if name is None:
        return None
    # The part after a dot names published weights.
    row = architectures().get(str(name).partition(".")[0])
    if row is None or row.facts is None:
        plain_ones = [each for each, other in architectures().items() if other.facts is not None]
        fitting = [each for each in fitting_architectures(checkpoint) if each in plain_ones]
        expected = choices(fitting or get_close_matches(str(name), plain_ones, 3) or ["vit_base_patch16_224"])
        raise UnknownFamilyError(
            f"{checkpoint.name}: architecture = {quote(name)}: expected one of timm's plain ones, such as {expected}"
        )
    return row


def _facts_of(checkpoint: MatchedCheckpoint, row: TimmArchitecture) -> dict[str, Any]:
    """The facts of an architecture, with what ``config.json`` and the user state.

    Raises:
        UnknownFamilyError: ``config.json`` states arguments that make another network.
        CheckpointError: the weights are not those of the architecture, or their code may have other heads.
    """
    facts, config = {**(row.facts or {})}, checkpoint.config
    cfg, usual = config.get("pretrained_cfg") or config, {"global_pool": GLOBAL_POOLS.get(facts["pooling"])}
    arguments = {
        name: value
        for name, value in {"global_pool": cfg.get("global_pool"), **(config.get("model_args") or {})}.items()
        if value is not None and value != usual.get(name)
    }
    # Without classifiers of its two tokens, timm returns their mean.
    if other := sorted(arguments.keys() - SHOWN) + ["no classifier"] * (
        bool(config) and facts["pooling"] == "cls and distillation" and not checkpoint.has("classifier.weight")
    ):
        raise UnknownFamilyError(f"{checkpoint.name}: config.json states {', '.join(other)} of timm's network")
    if not arguments.keys() <= {"num_classes", "in_chans"}:
        facts["stated"] = {}
    stated, size = both_sides(arguments.get("img_size")), cfg.get("input_size")
    if stated is None and are_sides(size, 3) and (cfg.get("fixed_input_size") or not facts["any_size"]):
        stated = size[1], size[2]
    facts |= {
        "heads": arguments.get("num_heads", facts["heads"]),
        "image_size": stated or facts["image_size"],
        "any_size": bool(arguments.get("dynamic_img_size", facts["any_size"])),
    }
    classes = checkpoint.shape("classifier.weight")[:1]
    if classes and isinstance(config.get("num_classes"), int):
        facts["stated"] = {**facts["stated"], "classes": config["num_classes"]}
    if (found := _final_norm(checkpoint)) != facts["final_norm"]:
        differ = f"has the final norm {facts['final_norm']!r}, the weights {found!r}"
        raise CheckpointError(f"{checkpoint.name}: timm's {row.name} {differ}")
    architecture = checkpoint.overrides.get("architecture")
    if architecture is None:
        checkpoint.record("architecture", _name(checkpoint), "architecture in config.json")
        return facts
    if checkpoint.shape("patch_embedding.weight")[1:2] == (1,):
        # Like the number of classes, that of channels is no part of a name.
        facts["stated"] = {**facts["stated"], "channels": 1}
    if "heads" not in checkpoint.overrides and not OWN_PLACES.issuperset(checkpoint.prefix.split(".")):
        others_code = f"these keys, {quote(f'{checkpoint.prefix}…')}, are of other code, which may have others"
        raise CheckpointError(
            f"{checkpoint.name}: timm's {plain(architecture)} has {facts['heads']} heads, but {others_code} in the "
            "same shapes, as MoCo v3's ViT-S has 12; expected heads=… beside architecture=…"
        )
    return {**facts, "stated_by": f"architecture {architecture}"}


def _matching(checkpoint: MatchedCheckpoint) -> list[TimmArchitecture]:
    return matching_architectures({key: tensor.shape for key, tensor in checkpoint.encoder.items()})


def _pooling(checkpoint: MatchedCheckpoint) -> Any:
    if checkpoint.has("classifier.distilled.weight"):
        return "cls and distillation"
    if checkpoint.has("pooler.probe"):
        return "attention"
    pools_cls = checkpoint.has("prefix_tokens.cls") and _final_norm(checkpoint) != "after pooling"
    return OpenFact(usual="cls" if pools_cls else "mean")


def _final_norm(checkpoint: MatchedCheckpoint) -> str:
    fc_norm = checkpoint.keys.get("norm.weight", "").endswith("fc_norm.weight")
    return "after pooling" if fc_norm else "before pooling" if checkpoint.has("norm.weight") else "none"


def _transform(checkpoint: MatchedCheckpoint) -> PreprocessingRule:
    """The likeliest preprocessing of a file without a configuration: by its keys, and timm's models of its shapes."""
    scale = checkpoint.keys.get("layers.0.attention.projection.scale", "")
    if checkpoint.group == "model" or scale.endswith("gamma_1"):
        return PreprocessingRule.convention(IMAGENET, "DeiT's and MAE's evaluation")
    usual = TIMM.default_transform
    if checkpoint.has("prefix_tokens.distillation") or scale:
        usual = PreprocessingRule.convention(IMAGENET, "timm's convention for DeiT and DeiT-III", crop_fraction=0.9)
    elif checkpoint.has("pre_norm.weight"):
        usual = PreprocessingRule.convention(CLIP, "CLIP's preprocessing", crop_fraction=1.0)
    rules = [row.transform() for row in _matching(checkpoint)]
    alike = [rule for rule in rules if rule.preprocessing.mean == usual.preprocessing.mean]
    for found in (rules, alike):
        if found and all(rule.preprocessing == found[0].preprocessing for rule in found):
            return found[0]
    return usual


TIMM = Family(
    name="timm",
    title="timm ViT, DeiT, MAE, SigLIP, CLIP",
    names=NAMES,
    signatures=(SIGNATURE,),
    facts=timm_facts,
    published=published,
    architectures=fitting_architectures,
    default_transform=PreprocessingRule.convention(HALVES, "timm's convention for AugReg", crop_fraction=0.9),
    ignored={"decoder_*": MAE_DECODER, "mask_token": MAE_DECODER},
)
