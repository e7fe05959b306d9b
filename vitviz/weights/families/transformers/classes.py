"""Configuration classes of transformers: defaults of entries that a file omits, and entries that do not matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMMON = frozenset(
    (
        # Written for every model by some version.
        *("architectures", "model_type", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash"),
        *("torch_dtype", "dtype", "use_bfloat16", "torchscript", "tf_legacy_loss", "transformers.js_config"),
        *("return_dict", "use_return_dict", "output_attentions", "output_hidden_states", "output_scores"),
        *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
        *("_attn_implementation_autoset", "use_cache", "gradient_checkpointing", "chunk_size_feed_forward"),
        *("is_decoder", "is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size"),
        *("tie_word_embeddings", "tie_encoder_decoder", "tie_last_hidden_states"),
        # Classes, training and text.
        *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params"),
        *("tokenizer_class", "prefix", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id"),
        *("decoder_start_token_id", "initializer_range", "initializer_factor"),
        # Text generation, which version 4 wrote even into the vision part.
        *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
        *("diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty"),
        *("length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids"),
        *("num_return_sequences", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id"),
        *("remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens"),
        *("begin_suppress_tokens",),
    )
)
"""Entries of any model that change no number of a vision tower outside of training."""

SIZES: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
}
DROPOUTS = frozenset(("hidden_dropout_prob", "attention_probs_dropout_prob"))
BACKBONE = frozenset(
    (
        *("apply_layernorm", "reshape_hidden_states", "stage_names", "out_features", "out_indices"),
        *("_out_features", "_out_indices"),
        *("drop_path_rate", "layerscale_value"),
    )
)
# Entries of decoders, masks and losses, for pretraining only.
PRETRAINING = frozenset(("encoder_stride", "mask_ratio", "norm_pix_loss", "decoder_*", "mask_token", "use_mask_token"))
DECODER = dict.fromkeys(("decoder.*", "enc_to_dec_proj.*"), "the decoder, of pretraining or of texts")
"""Keys beside an encoder of pictures."""


@dataclass(frozen=True)
class VisionClass:
    """A configuration class of a vision tower.

    Args:
        name: of the class.
        model_type: its name in ``config.json``.
        defaults: values of entries that can change numbers, for files that omit them.
        harmless: entries besides :data:`COMMON` that change no number; names may contain ``*``.
    """

    name: str
    model_type: str
    defaults: Mapping[str, Any]
    harmless: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Composite:
    """A configuration class of a model that contains a vision tower.

    Args:
        model_type: its name in ``config.json``.
        towers: each ``model_type`` that the tower can have, the default first.
        rest: the other parts of the model, which vitviz leaves out.
        harmless: entries of the other parts; names may contain ``*``.
        section: name of the object that describes the tower.
        reads_tower_type: whether the ``model_type`` in that object selects the class; else it is always the default.
        legacy: whether an object ``..._dict`` overrides that object, as in files of the first versions.
    """

    model_type: str
    towers: tuple[str, ...]
    rest: str
    harmless: frozenset[str]
    section: str = "vision_config"
    reads_tower_type: bool = False
    legacy: bool = False


def _vit(name: str, model_type: str, harmless: frozenset[str], **defaults: Any) -> VisionClass:
    common = {
        **SIZES,
        "intermediate_size": 3072,
        "patch_size": 16,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "qkv_bias": True,
    }
    return VisionClass(name, model_type, {**common, **defaults}, DROPOUTS | harmless)


def _dinov2(name: str, model_type: str, harmless: frozenset[str], **defaults: Any) -> VisionClass:
    common = {
        **SIZES,
        "mlp_ratio": 4,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,
        "qkv_bias": True,
        "use_swiglu_ffn": False,
    }
    return VisionClass(name, model_type, {**common, **defaults}, DROPOUTS | BACKBONE | harmless)


# Entries in configurations of towers that are for the surrounding model, and dropouts.
OF_COMPOSITES = frozenset(
    (
        *("projection_dim", "vocab_size", "num_image_tokens", "projector_hidden_act"),
        *("attention_dropout", "dropout"),
    )
)


def _clip(name: str, model_type: str, **defaults: Any) -> VisionClass:
    common = {
        **SIZES,
        "intermediate_size": 3072,
        "patch_size": 32,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
    }
    return VisionClass(
        name, model_type, {**common, **defaults}, frozenset(("attention_dropout", "dropout")) | OF_COMPOSITES
    )


def _siglip(name: str, model_type: str, **defaults: Any) -> VisionClass:
    common = {"patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
    return _clip(name, model_type, **{**common, **defaults})


POOLER = {"pooler_output_size": None, "pooler_act": "tanh"}
_SIGLIP2 = _siglip("Siglip2VisionConfig", "siglip2_vision_model", vision_use_head=True, num_patches=256)

CLASSES: Mapping[str, VisionClass] = {
    each.model_type: each
    for each in (
        _vit("ViTConfig", "vit", PRETRAINING, **POOLER),
        _vit("DeiTConfig", "deit", PRETRAINING, **POOLER),
        _vit("ViTMAEConfig", "vit_mae", PRETRAINING),
        _vit("ViTMSNConfig", "vit_msn", frozenset(), layer_norm_eps=1e-6),
        _vit("IJepaConfig", "ijepa", frozenset(POOLER)),
        _vit("FlavaImageConfig", "flava_image_model", PRETRAINING | {"vocab_size"}),
        _dinov2("Dinov2Config", "dinov2", PRETRAINING, patch_size=14),
        _dinov2(
            "Dinov2WithRegistersConfig",
            "dinov2_with_registers",
            PRETRAINING,
            patch_size=16,
            num_register_tokens=4,
        ),
        VisionClass(
            "DINOv3ViTConfig",
            "dinov3_vit",
            {
                **SIZES,
                "hidden_size": 384,
                "num_attention_heads": 6,
                "intermediate_size": 1536,
                "patch_size": 16,
                "hidden_act": "gelu",
                "layer_norm_eps": 1e-5,
                "rope_theta": 100.0,
                "query_bias": True,
                "key_bias": False,
                "value_bias": True,
                "proj_bias": True,
                "mlp_bias": True,
                "use_gated_mlp": False,
                "num_register_tokens": 0,
            },
            # The last three change coordinates in training only.
            BACKBONE | {"attention_dropout", "pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"},
        ),
        _clip("CLIPVisionConfig", "clip_vision_model"),
        _clip("MetaClip2VisionConfig", "metaclip_2_vision_model"),
        _clip("ChineseCLIPVisionConfig", "chinese_clip_vision_model"),
        _clip("AltCLIPVisionConfig", "altclip_vision_model"),
        _clip("CLIPSegVisionConfig", "clipseg_vision_model"),
        _clip("GitVisionConfig", "git_vision_model", patch_size=16),
        _siglip("SiglipVisionConfig", "siglip_vision_model", vision_use_head=True),
        VisionClass(
            _SIGLIP2.name,
            _SIGLIP2.model_type,
            {name: value for name, value in _SIGLIP2.defaults.items() if name != "image_size"},
            # Its images may have any size.
            _SIGLIP2.harmless | {"image_size"},
        ),
    )
}

TEXT = frozenset(
    (
        *("text_config", "text_config_dict", "text_model_type", "projection_dim", "logit_scale_init_value"),
        *("projection_size", "vocab_size"),
    )
)
LANGUAGE_MODEL = "the language model and what connects it"
TEXT_TOWER = "the text tower"


def _beside_text(model_type: str, tower: str, *harmless: str, legacy: bool = True) -> Composite:
    return Composite(model_type, (tower,), TEXT_TOWER, TEXT | frozenset(harmless), legacy=legacy)


COMPOSITES: Mapping[str, Composite] = {
    each.model_type: each
    for each in (
        _beside_text("clip", "clip_vision_model"),
        _beside_text("metaclip_2", "metaclip_2_vision_model"),
        _beside_text("chinese_clip", "chinese_clip_vision_model"),
        _beside_text(
            "altclip",
            "altclip_vision_model",
            *("direct_kd", "num_layers", "text_model_name", "vision_model_name"),
        ),
        _beside_text(
            "clipseg",
            "clipseg_vision_model",
            *("extract_layers", "reduce_dim", "decoder_*", "conditional_layer", "use_complex_transposed_convolution"),
        ),
        _beside_text("siglip", "siglip_vision_model", legacy=False),
        _beside_text("siglip2", "siglip2_vision_model", legacy=False),
        Composite(
            "git",
            ("git_vision_model",),
            LANGUAGE_MODEL,
            # Entries of its text model are at the top level.
            TEXT
            | DROPOUTS
            | {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"}
            | {
                "layer_norm_eps",
                "max_position_embeddings",
                "position_embedding_type",
                "num_image_with_embedding",
                "classifier_dropout",
            },
        ),
        Composite(
            "flava",
            ("flava_image_model",),
            "the models of text and of both",
            TEXT
            | frozenset(
                (
                    *("multimodal_config", "multimodal_config_dict", "image_codebook_config"),
                    *("image_codebook_config_dict", "hidden_size", "layer_norm_eps", "init_codebook"),
                    *("ce_ignore_index", "*_weight", "global_backprop_contrastive"),
                    *("skip_unmasked_multimodal_encoder", "return_loss"),
                )
            ),
            section="image_config",
            legacy=True,
        ),
        Composite(
            "vision-encoder-decoder",
            ("vit", "deit", "dinov2", "dinov2_with_registers"),
            "the decoder of texts",
            frozenset(("decoder", "processor_class")),
            section="encoder",
            reads_tower_type=True,
        ),
    )
}


def model_types(*towers: str) -> tuple[str, ...]:
    """Every ``model_type`` whose tower can be one of these: their own, and those of models that contain one."""
    return (*towers, *(name for name, composite in COMPOSITES.items() if set(towers) & set(composite.towers)))
