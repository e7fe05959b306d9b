"""Small random vision-language models of transformers with processors of their own, without the hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.language.family_parts import (
    BART,
    EDGE,
    PATCH,
    QUESTION,
    SQUARE,
    TEXT,
    VISION,
    WIDTH,
    Made,
    ids_of,
    tokenizer,
)
from tests.language.further_families import FURTHER
from tests.reference_packages import transformers as hf


def llava() -> Made:
    words = tokenizer("<image>")
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**VISION, projection_dim=WIDTH),
        text_config=hf.LlamaConfig(**TEXT),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
    )
    images = hf.CLIPImageProcessor(size={"shortest_edge": EDGE}, crop_size=SQUARE)
    options = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = hf.LlavaProcessor(images, words, **options)
    return hf.LlavaForConditionalGeneration(config), processor, f"<image> {QUESTION}"


def vipllava() -> Made:
    """Its decoder writes the parts of keys into one tensor."""
    sizes = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
    text = {**TEXT, **sizes, "num_key_value_heads": 4, "first_k_dense_replace": 3}
    words = tokenizer("<image>")
    config = hf.VipLlavaConfig(
        vision_config=hf.CLIPVisionConfig(**VISION, projection_dim=WIDTH),
        text_config=hf.DeepseekV2Config(**text),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
        vision_feature_layers=[-2, -1],
    )
    _, processor, question = llava()
    return hf.VipLlavaForConditionalGeneration(config), processor, question


def llava_next() -> Made:
    words, pins = tokenizer("<image>"), [[56, 112], [112, 56], [112, 112]]
    config = hf.LlavaNextConfig(
        vision_config=hf.CLIPVisionConfig(**VISION, projection_dim=WIDTH),
        text_config=hf.LlamaConfig(**TEXT),
        image_grid_pinpoints=pins,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    images = hf.LlavaNextImageProcessor(size={"shortest_edge": EDGE}, crop_size=SQUARE, image_grid_pinpoints=pins)
    options = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = hf.LlavaNextProcessor(images, words, **options)
    return hf.LlavaNextForConditionalGeneration(config), processor, f"<image> {QUESTION}"


def llava_onevision() -> Made:
    words, pins = tokenizer("<image>", "<video>"), [[56, 56], [56, 112], [112, 56], [112, 112]]
    config = hf.LlavaOnevisionConfig(
        vision_config=hf.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=hf.Qwen2Config(**TEXT),
        image_grid_pinpoints=pins,
        image_token_index=words.convert_tokens_to_ids("<image>"),
        video_token_index=words.convert_tokens_to_ids("<video>"),
    )
    images = hf.LlavaOnevisionImageProcessor(size=SQUARE, image_grid_pinpoints=pins)
    options = {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
    processor = hf.LlavaOnevisionProcessor(images, words, hf.LlavaOnevisionVideoProcessor(), **options)
    return hf.LlavaOnevisionForConditionalGeneration(config), processor, f"<image> {QUESTION}"


def _qwen(name: str, edge: int, **vision: Any) -> Made:
    special = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    words = tokenizer(*special)
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ids = ids_of(words, names, special)
    is_third = name == "Qwen3VL"
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4, "mrope_interleaved": is_third}
    vision |= {"depth": 2, "num_heads": 4, "patch_size": edge, "spatial_merge_size": 2, "temporal_patch_size": 2}
    config = getattr(hf, f"{name}Config")(text_config={**TEXT, "rope_parameters": rope}, vision_config=vision, **ids)
    cell = (2 * edge) ** 2
    images = hf.Qwen2VLImageProcessor(size={"shortest_edge": 4 * cell, "longest_edge": 40 * cell}, patch_size=edge)
    videos = hf.Qwen3VLVideoProcessor() if is_third else hf.Qwen2VLVideoProcessor()
    processor = getattr(hf, f"{name}Processor")(images, words, videos)
    question = f"<|vision_start|> <|image_pad|> <|vision_end|> {QUESTION}"
    return getattr(hf, f"{name}ForConditionalGeneration")(config), processor, question


def qwen2_vl() -> Made:
    return _qwen("Qwen2VL", 14, embed_dim=WIDTH, hidden_size=WIDTH, mlp_ratio=2)


def qwen2_5_vl() -> Made:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 48, "out_hidden_size": WIDTH}
    return _qwen("Qwen2_5_VL", 14, **sizes, window_size=EDGE, fullatt_block_indexes=[1])


def qwen3_vl() -> Made:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 48, "out_hidden_size": WIDTH}
    return _qwen("Qwen3VL", 16, **sizes, num_position_embeddings=64, deepstack_visual_indexes=[0, 1])


def internvl() -> Made:
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    words = tokenizer("<video>", **named)
    words.video_token = "<video>"
    sides = {"image_size": [EDGE, EDGE], "patch_size": [PATCH, PATCH]}
    config = hf.InternVLConfig(
        vision_config={**VISION, **sides},
        text_config=hf.Qwen2Config(**TEXT),
        image_token_id=words.context_image_token_id,
        image_seq_length=4,
    )
    images = hf.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, max_patches=6)
    processor = hf.InternVLProcessor(images, words, hf.InternVLVideoProcessor(), image_seq_length=4)
    return hf.InternVLForConditionalGeneration(config), processor, f"<IMG_CONTEXT> {QUESTION}"


def paligemma() -> Made:
    words = tokenizer("<image>")
    config = hf.PaliGemmaConfig(
        vision_config=hf.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=hf.GemmaConfig(**TEXT),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        projection_dim=WIDTH,
    )
    images = hf.SiglipImageProcessor(size=SQUARE)
    images.image_seq_length = 16
    processor = hf.PaliGemmaProcessor(images, words)
    config.image_token_id = processor.image_token_id
    return hf.PaliGemmaForConditionalGeneration(config), processor, f"<image> {QUESTION}"


def gemma3() -> Made:
    named = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    words = tokenizer(**named)
    # A window shorter than the prompt.
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    config = hf.Gemma3Config(
        vision_config=hf.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=hf.Gemma3TextConfig(**TEXT, sliding_window=10, layer_types=kinds),
        mm_tokens_per_image=4,
        image_token_index=words.image_token_id,
        boi_token_index=words.boi_token_id,
        eoi_token_index=words.eoi_token_id,
    )
    config.image_token_id = words.image_token_id
    processor = hf.Gemma3Processor(hf.Gemma3ImageProcessor(size=SQUARE), words, image_seq_length=4)
    return hf.Gemma3ForConditionalGeneration(config), processor, f"<start_of_image> {QUESTION}"


def _idefics(name: str) -> Made:
    named = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
    cells = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    words = tokenizer("<end_of_utterance>", *cells, **named, global_image_token="<global-img>")
    config = getattr(hf, f"{name}Config")(
        vision_config=VISION,
        text_config=hf.LlamaConfig(**TEXT),
        scale_factor=2,
        image_token_id=words.image_token_id,
        pad_token_id=1,
    )
    sizes = {"size": {"longest_edge": 3 * EDGE}, "max_image_size": {"longest_edge": EDGE}}
    images = getattr(hf, f"{name}ImageProcessor")(**sizes)
    if name == "SmolVLM":
        processor = hf.SmolVLMProcessor(images, words, hf.SmolVLMVideoProcessor(), image_seq_len=4)
    else:
        processor = hf.Idefics3Processor(images, words, image_seq_len=4)
    return getattr(hf, f"{name}ForConditionalGeneration")(config), processor, f"<image> {QUESTION}"


def idefics3() -> Made:
    return _idefics("Idefics3")


def smolvlm() -> Made:
    return _idefics("SmolVLM")


def idefics2() -> Made:
    named = {"image_boundary_token": "<fake_token_around_image>", "end_of_utterance_token": "<end_of_utterance>"}
    words = tokenizer(image_token="<image>", **named)
    queries = {"resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 4, "resampler_head_dim": 8}
    config = hf.Idefics2Config(
        vision_config=VISION,
        perceiver_config={**queries, "num_key_value_heads": 2, "hidden_size": WIDTH},
        text_config=hf.MistralConfig(**TEXT),
        image_token_id=words.image_token_id,
    )
    images = hf.Idefics2ImageProcessor(size={"shortest_edge": EDGE, "longest_edge": EDGE}, do_image_splitting=False)
    processor = hf.Idefics2Processor(images, words, image_seq_len=4)
    return hf.Idefics2ForConditionalGeneration(config), processor, f"<image> {QUESTION}"


def pixtral() -> Made:
    words = tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    sides = {"image_size": 224, "patch_size": 16, "head_dim": 8}
    config = hf.LlavaConfig(
        vision_config=hf.PixtralVisionConfig(**{**VISION, **sides}),
        text_config=hf.MistralConfig(**TEXT),
        image_token_index=words.convert_tokens_to_ids("[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    images = hf.PixtralImageProcessor(size={"longest_edge": 224}, patch_size={"height": 16, "width": 16})
    return (
        hf.LlavaForConditionalGeneration(config),
        hf.PixtralProcessor(images, words, patch_size=16),
        f"[IMG] {QUESTION}",
    )


def mistral3() -> Made:
    words = tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    sides = {"image_size": 224, "patch_size": 14, "head_dim": 8}
    config = hf.Mistral3Config(
        vision_config=hf.PixtralVisionConfig(**{**VISION, **sides}),
        text_config=hf.MistralConfig(**TEXT),
        image_token_index=words.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
    )
    images = hf.PixtralImageProcessor(size={"longest_edge": 224}, patch_size={"height": 28, "width": 28})
    processor = hf.PixtralProcessor(images, words, patch_size=14, spatial_merge_size=2)
    return hf.Mistral3ForConditionalGeneration(config), processor, f"[IMG] {QUESTION}"


def aya_vision() -> Made:
    special = ("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE", "TILE_GLOBAL")
    words = tokenizer("<image>", *special)
    config = hf.AyaVisionConfig(
        vision_config=hf.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=hf.Cohere2Config(**{**TEXT, "layer_types": ["full_attention"] * 3}),
        image_token_index=words.convert_tokens_to_ids("<|IMG_PATCH|>"),
        downsample_factor=2,
        adapter_layer_norm_eps=1e-6,
    )
    images = hf.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, max_patches=4)
    processor = hf.AyaVisionProcessor(images, words, patch_size=PATCH, img_size=EDGE, downsample_factor=2)
    return hf.AyaVisionForConditionalGeneration(config), processor, f"<image> {QUESTION}"


def vision_encoder_decoder() -> Made:
    """As TrOCR, Donut (with a ViT) and captioners: cross-attention, and no question."""
    decoder = hf.GPT2Config(
        n_embd=WIDTH, n_layer=2, n_head=4, vocab_size=200, add_cross_attention=True, is_decoder=True
    )
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(hf.ViTConfig(**VISION), decoder)
    config.decoder_start_token_id, config.pad_token_id = 2, 1
    module = hf.VisionEncoderDecoderModel(config)
    module.generation_config.decoder_start_token_id, module.generation_config.pad_token_id = 2, 1
    return module, hf.ViTImageProcessor(size=SQUARE), ""


def mllama() -> Made:
    words = tokenizer("<|image|>", "<|begin_of_text|>")
    ratios = [[1, 1], [1, 2], [2, 1], [2, 2], [1, 3], [1, 4], [3, 1], [4, 1]]
    vision = {**VISION, "attention_heads": 4, "num_global_layers": 1, "max_num_tiles": 4}
    vision |= {"intermediate_layers_indices": [0], "supported_aspect_ratios": ratios, "vision_output_dim": 2 * WIDTH}
    text = {key: value for key, value in TEXT.items() if key != "head_dim"}
    text |= {"cross_attention_layers": [1], "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    config = hf.MllamaConfig(
        vision_config=vision, text_config=text, image_token_index=words.convert_tokens_to_ids("<|image|>")
    )
    processor = hf.MllamaProcessor(hf.MllamaImageProcessor(size=SQUARE, max_image_tiles=4), words)
    return hf.MllamaForConditionalGeneration(config), processor, f"<|image|> {QUESTION}"


def glm4v() -> Made:
    special = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
    words = tokenizer(*special, image_token="<|image|>", video_token="<|video|>")
    starts = ("image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id")
    ids = ids_of(words, starts, special)
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4, "partial_rotary_factor": 1.0}
    vision = {"hidden_size": WIDTH, "out_hidden_size": WIDTH, "intermediate_size": 48, "depth": 2, "num_heads": 4}
    config = hf.Glm4vConfig(
        text_config={**TEXT, "rope_parameters": rope},
        vision_config={**vision, "image_size": EDGE, "patch_size": PATCH},
        image_token_id=words.image_token_id,
        video_token_id=words.video_token_id,
        **ids,
    )
    cell = 2 * (2 * PATCH) ** 2
    images = hf.Glm4vImageProcessor(size={"shortest_edge": 4 * cell, "longest_edge": 40 * cell}, patch_size=PATCH)
    processor = hf.Glm4vProcessor(images, words, hf.Glm4vVideoProcessor())
    question = f"<|begin_of_image|> <|image|> <|end_of_image|> {QUESTION}"
    return hf.Glm4vForConditionalGeneration(config), processor, question


def deepseek_vl() -> Made:
    """Its pictures are padded to squares."""
    words = tokenizer(image_token="<image_placeholder>")
    config = hf.DeepseekVLConfig(
        vision_config=hf.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=hf.LlamaConfig(**TEXT),
        image_token_id=words.image_token_id,
    )
    images = hf.DeepseekVLImageProcessor(size=SQUARE, min_size=PATCH)
    processor = hf.DeepseekVLProcessor(images, words, num_image_tokens=16)
    return hf.DeepseekVLForConditionalGeneration(config), processor, f"<image_placeholder> {QUESTION}"


def git() -> Made:
    text = {key: value for key, value in TEXT.items() if key != "head_dim"}
    images = hf.CLIPImageProcessor(size={"shortest_edge": EDGE}, crop_size=SQUARE)
    return hf.GitForCausalLM(hf.GitConfig(vision_config=VISION, **text)), images, ""


def lfm2_vl() -> Made:
    """Most layers of its decoder are convolutions."""
    named = {"image_start_token": "<start>", "image_end_token": "<end>", "image_thumbnail": "<thumb>"}
    words = tokenizer(image_token="<image>", **named)
    vision = {key: value for key, value in VISION.items() if key != "image_size"}
    text = {key: value for key, value in TEXT.items() if key != "head_dim"}
    config = hf.Lfm2VlConfig(
        vision_config=hf.Siglip2VisionConfig(**vision, num_patches=64, vision_use_head=False),
        text_config=hf.Lfm2Config(**text, layer_types=["conv", "full_attention", "conv"]),
        image_token_id=words.image_token_id,
        downsample_factor=2,
        projector_hidden_size=48,
    )
    sizes = {"encoder_patch_size": PATCH, "tile_size": EDGE, "min_image_tokens": 4, "max_image_tokens": 16}
    images = hf.Lfm2VlImageProcessor(**sizes, do_image_splitting=False, max_num_patches=64)
    return hf.Lfm2VlForConditionalGeneration(config), hf.Lfm2VlProcessor(images, words), f"<image> {QUESTION}"


def florence2() -> Made:
    """Its patches are convolutions that overlap."""
    words = tokenizer(image_token="<image>")
    stages = {"depths": [1, 1], "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1]}
    stages |= {"patch_prenorm": [False, True], "embed_dim": [16, WIDTH], "num_heads": [2, 4], "num_groups": [2, 4]}
    sides = {f"{part}_{key}": value for part in ("encoder", "decoder") for key, value in BART.items()}
    ends = {key: TEXT[key] for key in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")}
    config = hf.Florence2Config(
        vision_config={**stages, "window_size": 7, "projection_dim": WIDTH},
        text_config={**sides, **ends, "d_model": WIDTH, "decoder_start_token_id": 3, "model_type": "bart"},
        image_token_id=words.image_token_id,
    )
    images = hf.CLIPImageProcessor(size=SQUARE, do_center_crop=False)
    images.image_seq_length = 50
    return hf.Florence2ForConditionalGeneration(config), hf.Florence2Processor(images, words), QUESTION


def _query_former(name: str) -> Made:
    words = tokenizer("<image>")
    queries = {**TEXT, "num_hidden_layers": 2, "encoder_hidden_size": WIDTH, "cross_attention_frequency": 1}
    config = getattr(hf, f"{name}Config")(
        vision_config=VISION,
        qformer_config=queries,
        text_config=hf.OPTConfig(**{**TEXT, "ffn_dim": 48, "num_hidden_layers": 2, "word_embed_proj_dim": WIDTH}),
        num_query_tokens=4,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    images = hf.BlipImageProcessor(size=SQUARE)
    if name == "InstructBlip":
        processor = hf.InstructBlipProcessor(images, words, words, num_query_tokens=4)
    else:
        processor = hf.Blip2Processor(images, words, num_query_tokens=4)
    return getattr(hf, f"{name}ForConditionalGeneration")(config), processor, QUESTION


def blip2() -> Made:
    return _query_former("Blip2")


def instructblip() -> Made:
    return _query_former("InstructBlip")


QUERY_TOKENS = "stands for one part of the picture"
# Families that are refused, with what is said of them.
REFUSED = {
    **dict.fromkeys(("idefics2", "blip2", "instructblip", "aria", "kosmos2", "chameleon"), QUERY_TOKENS),
    **dict.fromkeys(
        ("florence2", "got_ocr2", "deepseek_vl_hybrid"),
        "leads to several tokens at once, as where convolutions overlap",
    ),
    **dict.fromkeys(("lfm2_vl", "qwen3_5"), "attention was seen in 1 places of its 3 layers"),
    "janus": "its own generate\\(\\) takes no logits_processor",
    "pix2struct": "its processor changes colours by what the picture shows",
}
FAMILIES: dict[str, Callable[[], Made]] = {
    each.__name__: each
    for each in (
        *(llava, vipllava, llava_next, llava_onevision, qwen2_vl, qwen2_5_vl, qwen3_vl, internvl, paligemma, gemma3),
        *(idefics3, smolvlm, pixtral, mistral3, aya_vision, vision_encoder_decoder, mllama),
        *(glm4v, deepseek_vl, git, idefics2, blip2, instructblip, florence2, lfm2_vl),
    )
} | FURTHER
# Parts of names of the weights whose size makes attention uneven.
ATTENDING = ("q_proj", "k_proj", "c_attn", "query", "key", "q.", "qkv", "_b_proj")


def make(name: str) -> Made:
    """A model of a family in evaluation mode, with attention that is far from even, that never ends its text."""
    torch.manual_seed(0)
    module, processor, question = FAMILIES[name]()
    with torch.no_grad():
        for key, weight in module.named_parameters():
            if weight.ndim >= 2 and any(part in key for part in ATTENDING):
                weight.mul_(8)
            # Zeros until it is trained.
            if key.endswith("mm_input_projection_weight"):
                weight.normal_(std=0.1)
    module.generation_config.eos_token_id = None
    return module.eval(), processor, question
