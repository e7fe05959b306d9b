"""Small CLIP-type checkpoints with random weights and with a tokenizer, written by their own packages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from tests.parity.case import randomised
from tests.reference_packages import open_clip, transformers

Scores = Callable[[torch.Tensor, str], torch.Tensor]
"""Takes pixels and a text; returns the logit that the package computes."""

VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {"vocab_size": 60, "max_position_embeddings": 10, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


def write_tokenizer(folder: Path) -> None:
    """A vocabulary of single letters, as CLIP's tokenizer reads one."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer.save_pretrained(folder)


def make_transformers(folder: Path, kind: str) -> Scores:
    vision = {**VISION, "image_size": 32, "patch_size": 8}
    names = {"CLIP": "CLIP", "SigLIP": "Siglip"}
    config = getattr(transformers, f"{names[kind]}Config")(
        vision_config=vision,
        text_config={**VISION, **TEXT, **({"projection_size": 32} if kind == "SigLIP" else {})},
        **({"projection_dim": 24} if kind == "CLIP" else {}),
    )
    network = randomised(getattr(transformers, f"{names[kind]}Model")(config))
    network.save_pretrained(folder)
    side = {"height": 32, "width": 32}
    sizes = {"size": {"shortest_edge": 32}, "crop_size": side} if kind == "CLIP" else {"size": side}
    getattr(transformers, f"{names[kind]}ImageProcessor")(**sizes).save_pretrained(folder)
    write_tokenizer(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def scores(pixels: torch.Tensor, text: str) -> torch.Tensor:
        tokens = tokenizer([text], padding="max_length", max_length=10, truncation=True, return_tensors="pt")
        return network(pixel_values=pixels, **tokens).logits_per_image[0, 0]

    return scores


def make_open_clip(folder: Path) -> Scores:
    vision = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 8}
    text = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    settings = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}
    network = randomised(open_clip.CLIP(**settings))
    torch.save(network.state_dict(), folder / "open_clip_pytorch_model.bin")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": settings, "preprocess_cfg": {}}))
    tokenizer = open_clip.get_tokenizer("ViT-B-32")

    def scores(pixels: torch.Tensor, text: str) -> torch.Tensor:
        image = network.encode_image(pixels, normalize=True)[0]
        return network.logit_scale.exp() * image @ network.encode_text(tokenizer([text]), normalize=True)[0]

    return scores


MAKERS = {
    "transformers CLIP": lambda folder: make_transformers(folder, "CLIP"),
    "transformers SigLIP": lambda folder: make_transformers(folder, "SigLIP"),
    "open_clip": make_open_clip,
}
