"""Further small random vision-language models, of families that are seldom used, or of which most are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.language.family_parts import EDGE, PATCH, QUESTION, SQUARE, TEXT, VISION, WIDTH, Made, ids_of, tokenizer
from tests.reference_packages import transformers as hf

ROPE = {"rope_type": "default", "rope_theta": 1e4}
SIGLIP = {**VISION, "vision_use_head": False}
# Of SAM's encoder, whose neck has convolutions that overlap.
SAM = {"hidden_size": WIDTH, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
SAM |= {"patch_size": 4, "window_size": 4, "mlp_dim": 48}
# Of pictures in patches of which four are merged, in pixels.
MERGED_SIZES = {"shortest_edge": 4 * (2 * PATCH) ** 2, "longest_edge": 40 * (2 * PATCH) ** 2}
WITHOUT_HEAD_DIM = {key: value for key, value in TEXT.items() if key != "head_dim"}


def ovis2() -> Made:
    marks = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
    words = tokenizer("<image>", "<IMG_ATOM>", *marks)
    config = hf.Ovis2Config(
        vision_config={**VISION, "vocab_size": 64, "num_visual_indicator_tokens": 5, "hidden_stride": 2},
        text_config=hf.Qwen2Config(**TEXT),
        image_token_id=words.convert_tokens_to_ids("<IMG_ATOM>"),
        visual_indicator_token_ids=[words.convert_tokens_to_ids(mark) for mark in marks],
        vocab_size=TEXT["vocab_size"],
        hidden_size=WIDTH,
    )
    images = hf.Ovis2ImageProcessor(size=SQUARE, crop_to_patches=True, max_patches=4)
    processor = hf.Ovis2Processor(images, words, image_seq_length=4)
    return hf.Ovis2ForConditionalGeneration(config), processor, f"<image> {QUESTION}"


def cohere2_vision() -> Made:
    named = {"boi_token": "<boi>", "eoi_token": "<eoi>", "image_token": "<image>", "img_line_break_token": "<br>"}
    words = tokenizer(**named)
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    config = hf.Cohere2VisionConfig(
        vision_config=hf.SiglipVisionConfig(**SIGLIP),
        text_config=hf.Cohere2Config(**TEXT, layer_types=kinds, sliding_window=10),
        downsample_factor=2,
        image_token_id=words.image_token_id,
        alignment_intermediate_size=48,
    )
    images = hf.Cohere2VisionImageProcessor(size=SQUARE, max_patches=4, patch_size=2)
    processor = hf.Cohere2VisionProcessor(images, words)
    return hf.Cohere2VisionForConditionalGeneration(config), processor, f"<image> {QUESTION}"


def lighton_ocr() -> Made:
    words = tokenizer(image_token="[IMG]", image_break_token="[BR]", image_end_token="[END]")
    sides = {"image_size": 224, "patch_size": 14, "head_dim": 8}
    config = hf.LightOnOcrConfig(
        vision_config=hf.PixtralVisionConfig(**{**VISION, **sides}),
        text_config=hf.Qwen3Config(**TEXT),
        image_token_id=words.image_token_id,
        spatial_merge_size=2,
    )
    images = hf.PixtralImageProcessor(size={"longest_edge": 224}, patch_size={"height": 28, "width": 28})
    processor = hf.LightOnOcrProcessor(images, words, patch_size=14, spatial_merge_size=2)
    return hf.LightOnOcrForConditionalGeneration(config), processor, f"[IMG] {QUESTION}"


def perception_lm() -> Made:
    words = tokenizer(image_token="<image>", video_token="<video>")
    sizes = {"embed_dim": WIDTH, "depth": 2, "num_heads": 4, "img_size": (EDGE, EDGE), "patch_size": PATCH}
    sizes |= {"ref_feat_shape": (4, 4), "mlp_ratio": 1.5, "init_values": 0.1}
    vision = hf.TimmWrapperConfig(
        architecture="vit_pe_core_tiny_patch16_384",
        do_pooling=False,
        model_args={**sizes, "global_pool": "", "use_post_transformer_norm": False},
    )
    config = hf.PerceptionLMConfig(
        vision_config=vision,
        text_config=hf.LlamaConfig(**TEXT),
        image_token_id=words.image_token_id,
        video_token_id=words.video_token_id,
        projector_pooling_ratio=2,
    )
    images = hf.PerceptionLMImageProcessor(tile_size=EDGE, max_num_tiles=4, vision_input_type="thumb+tile")
    options = {"patch_size": PATCH, "pooling_ratio": 2}
    processor = hf.PerceptionLMProcessor(hf.PerceptionLMVideoProcessor(), images, words, **options)
    return hf.PerceptionLMForConditionalGeneration(config), processor, f"<image> {QUESTION}"


def _glm(name: str, **kinds: str) -> Made:
    special = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
    words = tokenizer(*special, image_token="<|image|>", video_token="<|video|>")
    starts = ("image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id")
    rope = {**ROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0}
    vision = {"hidden_size": WIDTH, "out_hidden_size": WIDTH, "intermediate_size": 48, "depth": 2, "num_heads": 4}
    vision |= {"image_size": EDGE, "patch_size": PATCH}
    parts = {"text_config": {**TEXT, "rope_parameters": rope}, "vision_config": vision}
    config = getattr(hf, f"{name}Config")(
        **{part: settings | ({"model_type": kinds[part]} if part in kinds else {}) for part, settings in parts.items()},
        image_token_id=words.image_token_id,
        video_token_id=words.video_token_id,
        **ids_of(words, starts, special),
    )
    cell = 2 * (2 * PATCH) ** 2
    images = hf.Glm46VImageProcessor(size={"shortest_edge": 4 * cell, "longest_edge": 40 * cell}, patch_size=PATCH)
    processor = hf.Glm46VProcessor(images, words, hf.Glm46VVideoProcessor())
    question = f"<|begin_of_image|> <|image|> <|end_of_image|> {QUESTION}"
    return getattr(hf, f"{name}ForConditionalGeneration")(config), processor, question


def glm46v() -> Made:
    return _glm("Glm46V", text_config="glm4v_text", vision_config="glm4v_vision")


def glm_ocr() -> Made:
    return _glm("GlmOcr")


def exaone4_5() -> Made:
    words = tokenizer("<vision>", "</vision>", image_token="<|image_pad|>", video_token="<|video_pad|>")
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    vision = {"depth": 2, "num_heads": 4, "num_key_value_heads": 2, "patch_size": PATCH, "window_size": EDGE}
    vision |= {"hidden_size": WIDTH, "intermediate_size": 48, "out_hidden_size": WIDTH, "fullatt_block_indexes": [1]}
    config = hf.Exaone4_5_Config(
        text_config={**TEXT, "model_type": "exaone4", "layer_types": kinds, "sliding_window": 10},
        vision_config=vision,
        image_token_id=words.image_token_id,
        video_token_id=words.video_token_id,
    )
    images = hf.Qwen2VLImageProcessor(size=MERGED_SIZES, patch_size=PATCH)
    processor = hf.Exaone4_5_Processor(images, words, hf.Qwen2VLVideoProcessor())
    return hf.Exaone4_5_ForConditionalGeneration(config), processor, f"<vision> <|image_pad|> </vision> {QUESTION}"


def paddleocr_vl() -> Made:
    marks = ("<|IMAGE_START|>", "<|IMAGE_END|>")
    words = tokenizer(*marks, image_token="<|IMAGE_PLACEHOLDER|>")
    config = hf.PaddleOCRVLConfig(
        text_config={**TEXT, "rope_parameters": {**ROPE, "mrope_section": [2, 1, 1]}},
        vision_config=VISION,
        image_token_id=words.image_token_id,
        **ids_of(words, ("vision_start_token_id", "vision_end_token_id"), marks),
    )
    images = hf.PaddleOCRVLImageProcessor(size=MERGED_SIZES, patch_size=PATCH, merge_size=2)
    question = f"<|IMAGE_START|> <|IMAGE_PLACEHOLDER|> <|IMAGE_END|> {QUESTION}"
    return hf.PaddleOCRVLForConditionalGeneration(config), hf.PaddleOCRVLProcessor(images, words), question


def donut() -> Made:
    """A Swin Transformer whose patches are merged twice, and MBart."""
    sizes = {"d_model": WIDTH, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
    decoder = hf.MBartConfig(vocab_size=200, is_decoder=True, add_cross_attention=True, **sizes)
    stages = {"embed_dim": 8, "depths": [1, 1, 1], "num_heads": [2, 2, 4], "hidden_size": WIDTH}
    encoder = hf.DonutSwinConfig(image_size=64, patch_size=4, window_size=4, **stages)
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    module = hf.VisionEncoderDecoderModel(config)
    for each in (module.config, module.generation_config):
        each.decoder_start_token_id, each.pad_token_id = 2, 1
    return module, hf.ViTImageProcessor(size={"height": 64, "width": 64}), ""


def _qwen3(name: str, **text: Any) -> Made:
    special = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    words = tokenizer(*special)
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    rope = {**ROPE, "mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 1.0}
    vision = {"depth": 2, "num_heads": 4, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}
    vision |= {"hidden_size": WIDTH, "intermediate_size": 48, "out_hidden_size": WIDTH, "num_position_embeddings": 64}
    config = getattr(hf, f"{name}Config")(
        text_config={**TEXT, **text, "rope_parameters": rope}, vision_config=vision, **ids_of(words, names, special)
    )
    images = hf.Qwen2VLImageProcessor(size={"shortest_edge": 4 * 32**2, "longest_edge": 40 * 32**2}, patch_size=16)
    processor = hf.Qwen3VLProcessor(images, words, hf.Qwen3VLVideoProcessor())
    question = f"<|vision_start|> <|image_pad|> <|vision_end|> {QUESTION}"
    return getattr(hf, f"{name}ForConditionalGeneration")(config), processor, question


def qwen3_vl_moe() -> Made:
    return _qwen3("Qwen3VLMoe", num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16)


def qwen3_5() -> Made:
    """Most layers of its decoder are linear attention."""
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    heads = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
    return _qwen3("Qwen3_5", layer_types=kinds, linear_num_value_heads=4, **heads)


def video_llama_3() -> Made:
    words = tokenizer(image_token="<image>", video_token="<video>")
    config = hf.VideoLlama3Config(
        vision_config={key: value for key, value in VISION.items() if key != "image_size"},
        text_config=hf.Qwen2Config(**TEXT),
        image_token_id=words.image_token_id,
        video_token_id=words.video_token_id,
    )
    images = hf.VideoLlama3ImageProcessor(size=MERGED_SIZES, patch_size=PATCH, merge_size=2)
    processor = hf.VideoLlama3Processor(images, words, hf.VideoLlama3VideoProcessor())
    return hf.VideoLlama3ForConditionalGeneration(config), processor, f"<image> {QUESTION}"


class _FuyuTokenizer(hf.PreTrainedTokenizerFast):  # type: ignore[misc]
    """Puts a token before what stands for a picture, as Fuyu's own does; its processor drops it."""

    def __call__(self, text: str, **options: Any) -> Any:
        return super().__call__(f"<unk> {text}" if text.startswith("|SPEAKER|") else text, **options)


def fuyu() -> Made:
    """Its decoder reads patches of pixels."""
    words = tokenizer("|SPEAKER|", "|NEWLINE|", "<0x04>")
    words.__class__ = _FuyuTokenizer
    config = hf.FuyuConfig(
        text_config={**TEXT, "model_type": "persimmon", "num_key_value_heads": 4},
        patch_size=16,
        image_token_id=words.convert_tokens_to_ids("|SPEAKER|"),
    )
    images = hf.FuyuImageProcessor(size={"height": 128, "width": 192}, patch_size={"height": 16, "width": 16})
    return hf.FuyuForCausalLM(config), hf.FuyuProcessor(images, words), QUESTION


def blip() -> Made:
    """Its decoder writes its attention by hand."""
    text = {key: value for key, value in WITHOUT_HEAD_DIM.items() if key != "num_key_value_heads"}
    text |= {"encoder_hidden_size": WIDTH, "projection_dim": WIDTH, "is_decoder": True, "sep_token_id": 3}
    vision = {**VISION, "initializer_range": 0.02}
    config = hf.BlipConfig(vision_config=vision, text_config=text, projection_dim=WIDTH)
    images = hf.BlipImageProcessor(size=SQUARE)
    return hf.BlipForConditionalGeneration(config), hf.BlipProcessor(images, tokenizer()), QUESTION


def idefics() -> Made:
    """Between the layers of its decoder, some attend to the picture."""
    words = tokenizer("<image>", "<fake_token_around_image>", "<end_of_utterance>")
    sizes = {key: TEXT[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads")}
    config = hf.IdeficsConfig(
        **sizes | {"vocab_size": 200, "additional_vocab_size": 3, "num_hidden_layers": 4, "use_resampler": False},
        cross_layer_interval=2,
        vision_config={**VISION, "embed_dim": WIDTH},
        alpha_initializer="ones",
    )
    images = hf.IdeficsImageProcessor(image_size=EDGE)
    return hf.IdeficsForVisionText2Text(config), hf.IdeficsProcessor(images, words), QUESTION


def gemma4() -> Made:
    """The last layers of its decoder read keys of layers before, for one token of the prompt alone."""
    names = ("image_token", "boi_token", "eoi_token", "audio_token", "boa_token", "eoa_token")
    words = tokenizer(**{name: f"<{name}>" for name in names})
    kinds = {"sliding_window": 10, "layer_types": ["sliding_attention", "full_attention"] * 2}
    vision = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision |= {"num_key_value_heads": 4, "head_dim": 8, "position_embedding_size": 64}
    cells = {"patch_size": 8, "pooling_kernel_size": 2}
    config = hf.Gemma4Config(
        text_config={**TEXT, **kinds, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "global_head_dim": 8}
        | {"vocab_size_per_layer_input": TEXT["vocab_size"], "hidden_size_per_layer_input": 8},
        vision_config=vision | cells,
        **{f"{name}_id": getattr(words, f"{name}_id") for name in names[:4]},
    )
    images = hf.Gemma4ImageProcessor(**cells, max_soft_tokens=70)
    processor = hf.Gemma4Processor(hf.Gemma4AudioFeatureExtractor(), images, words, hf.Gemma4VideoProcessor())
    return hf.Gemma4ForConditionalGeneration(config), processor, f"<image_token> {QUESTION}"


def got_ocr2() -> Made:
    words = tokenizer("<|im_start|>", "<|im_end|>", "<img>", "</img>", "<imgpad>")
    config = hf.GotOcr2Config(
        vision_config={**SAM, "image_size": 256, "global_attn_indexes": [1], "initializer_range": 0.02},
        text_config=hf.Qwen2Config(**TEXT),
        image_token_index=words.convert_tokens_to_ids("<imgpad>"),
    )
    images = hf.GotOcr2ImageProcessor(size={"height": 256, "width": 256})
    return hf.GotOcr2ForConditionalGeneration(config), hf.GotOcr2Processor(images, words), f"<imgpad> {QUESTION}"


def deepseek_vl_hybrid() -> Made:
    """A second encoder of it is SAM's, in which attention depends on positions by queries."""
    words = tokenizer(image_token="<image_placeholder>")
    config = hf.DeepseekVLHybridConfig(
        vision_config=hf.SiglipVisionConfig(**SIGLIP),
        high_res_vision_config=hf.SamVisionConfig(**SAM, image_size=64, global_attn_indexes=[1]),
        text_config=hf.LlamaConfig(**TEXT),
        image_token_id=words.image_token_id,
    )
    sizes = {"size": SQUARE, "min_size": PATCH, "high_res_size": {"height": 64, "width": 64}}
    images = hf.DeepseekVLHybridImageProcessor(**sizes)
    processor = hf.DeepseekVLHybridProcessor(images, words, num_image_tokens=16)
    return hf.DeepseekVLHybridForConditionalGeneration(config), processor, f"<image_placeholder> {QUESTION}"


def aria() -> Made:
    words = tokenizer(image_token="<image>")
    config = hf.AriaConfig(
        vision_config={**VISION, "model_type": "idefics3_vision", "image_size": 980},
        text_config={**TEXT, "moe_num_experts": 2, "moe_topk": 1, "moe_num_shared_experts": 1},
        projector_patch_to_query_dict={"4900": 4},
        image_token_index=words.image_token_id,
    )
    images = hf.AriaImageProcessor()
    processor = hf.AriaProcessor(images, words, size_conversion={980: 4})
    return hf.AriaForConditionalGeneration(config), processor, f"<image> {QUESTION}"


def kosmos2() -> Made:
    marks = ("<image>", "</image>", "<grounding>", "<phrase>", "</phrase>", "<object>", "</object>")
    words = tokenizer(*marks, "</delimiter_of_multi_objects/>")
    text = {"embed_dim": WIDTH, "layers": 2, "ffn_dim": 48, "attention_heads": 4, "vocab_size": TEXT["vocab_size"]}
    config = hf.Kosmos2Config(vision_config=VISION, text_config=text, latent_query_num=64)
    images = hf.CLIPImageProcessor(size={"shortest_edge": EDGE}, crop_size=SQUARE)
    processor = hf.Kosmos2Processor(images, words, num_patch_index_tokens=4)
    return hf.Kosmos2ForConditionalGeneration(config), processor, QUESTION


def chameleon() -> Made:
    """Its decoder reads the nearest codes of parts of the picture, which have no gradient."""
    words = tokenizer(image_token="<image>", boi_token="<boi>", eoi_token="<eoi>")
    digits = "ABCDEFGHIJ"
    codes = {f"IMGIMG{digits[code // 10]}{digits[code % 10]}Z": 200 + code for code in range(32)}
    blocks = {"base_channels": 32, "channel_multiplier": [1, 1, 1], "num_res_blocks": 1, "resolution": EDGE}
    config = hf.ChameleonConfig(
        **WITHOUT_HEAD_DIM,
        vq_config={**blocks, "embed_dim": 8, "num_embeddings": len(codes), "latent_channels": 8},
        vocabulary_map={**words.get_vocab(), **codes},
    )
    images = hf.ChameleonImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    processor = hf.ChameleonProcessor(images, words, image_seq_length=16)
    return hf.ChameleonForConditionalGeneration(config), processor, f"<image> {QUESTION}"


def janus() -> Made:
    words = tokenizer(image_token="<image>", boi_token="<boi>", eoi_token="<eoi>")
    vision = {key: value for key, value in VISION.items() if key != "intermediate_size"}
    codes = {"embed_dim": 8, "num_embeddings": 32, "latent_channels": 32, "base_channels": 32, "num_patches": 4}
    config = hf.JanusConfig(
        vision_config={**vision, "mlp_ratio": 1.5, "projection_dim": WIDTH, "num_image_tokens": 16},
        vq_config={**codes, "channel_multiplier": [1, 1], "projection_dim": WIDTH, "image_token_embed_dim": WIDTH},
        text_config=hf.LlamaConfig(**TEXT),
        image_token_id=words.image_token_id,
    )
    images = hf.JanusImageProcessor(size=SQUARE, min_size=PATCH)
    processor = hf.JanusProcessor(images, words, num_image_tokens=16)
    return hf.JanusForConditionalGeneration(config), processor, f"<image> {QUESTION}"


def pix2struct() -> Made:
    """Its processor divides by the deviation of each picture."""
    ends = {"decoder_start_token_id": 1, "pad_token_id": 1, "eos_token_id": 3}
    sizes = {"hidden_size": WIDTH, "d_ff": 48, "d_kv": 8}
    text = {**sizes, **ends, "num_layers": 2, "num_heads": 4, "vocab_size": TEXT["vocab_size"]}
    vision = {**sizes, "patch_embed_hidden_size": 3 * 16**2, "num_hidden_layers": 2, "num_attention_heads": 4}
    module = hf.Pix2StructForConditionalGeneration(hf.Pix2StructConfig(text_config=text, vision_config=vision))
    images = hf.Pix2StructImageProcessor(max_patches=32, patch_size={"height": 16, "width": 16})
    return module, hf.Pix2StructProcessor(images, tokenizer()), ""


FURTHER: dict[str, Callable[[], Made]] = {
    each.__name__: each
    for each in (
        *(ovis2, cohere2_vision, lighton_ocr, perception_lm, glm46v, glm_ocr, exaone4_5, paddleocr_vl, qwen3_vl_moe),
        *(video_llama_3, fuyu, blip, donut, idefics, gemma4),
        *(qwen3_5, got_ocr2, deepseek_vl_hybrid, aria, kosmos2, chameleon, janus, pix2struct),
    )
}
