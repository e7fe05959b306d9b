"""What is no checkpoint of this kind is refused in one sentence, however its keys are called."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from tests.parity.states import (
    facts_of,
    prefixed,
    read,
    refusal,
)
from tests.support.checkpoints import timm_state
from tests.support.reading import read_checkpoint
from vitviz.errors.kinds import CheckpointError
from vitviz.models.vit import VisionTransformer
from vitviz.weights.families import FAMILIES

pytestmark = pytest.mark.parity
EVERY = {family.name: family for family in FAMILIES}


# What is no Vision Transformer of this kind.

SWIN = {"layers.0.blocks.0.attn.relative_position_bias_table": (9, 4), "patch_embed.proj.weight": (8, 3, 4, 4)}
STRANGERS: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "Swin": (SWIN, "Swin"),
    "ResNet": ({"conv1.weight": (8, 3, 7, 7), "layer1.0.conv1.weight": (8, 8, 3, 3)}, "a ResNet"),
    "ConvNeXt": ({"downsample_layers.0.0.weight": (8, 3, 4, 4)}, "a ConvNeXt"),
    "MViT": ({"blocks.0.attn.rel_pos_h": (3, 4)}, "SAM or MViT"),
    "JAX hybrid": ({"conv_root/kernel": (7, 7, 3, 8), "embedding/kernel": (1, 1, 8, 8)}, "a hybrid"),
    "diffusion": ({"unet.down.weight": (3, 3)}, "a diffusion model"),
    "language model": ({"model.embed_tokens.weight": (9, 4), "lm_head.weight": (9, 4)}, "a language model"),
    "LoRA": (
        {"base_model.model.blocks.0.attn.qkv.lora_A.weight": (4, 8)},
        "a LoRA adapter, which peft's merge_and_unload() merges",
    ),
}


@pytest.mark.parametrize(("shapes", "sentence"), STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_told_what_it_is(shapes: dict[str, tuple[int, ...]], sentence: str, tmp_path: Path) -> None:
    state = {key: torch.ones(shape) for key, shape in shapes.items()}
    message = refusal(state, tmp_path)
    assert "this is " in message and sentence in message
    # And the same among keys that are those of a Vision Transformer.
    assert sentence in refusal({**timm_state(), **state}, tmp_path)


def test_a_family_can_be_said_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    state = timm_state(classes=None)
    assert facts_of(read(state, tmp_path))["family"] == EVERY["dino"].title
    said = read(state, tmp_path, family="timm", position_rule=None)
    assert (said.checks[0].value, said.checks[0].source) == (EVERY["timm"].title, "stated by the user")
    assert said.model.network.config.position_rule != read(state, tmp_path).model.network.config.position_rule
    assert "of the family 'clip'" in refusal(state, tmp_path, family="clip")
    with pytest.raises(CheckpointError, match=r"family 'tim': expected 'dinov3', .*'timm'.* or 'sequential'"):
        read(state, tmp_path, family="tim")


# Hostile names.

NAMES = [
    "__proto__",
    "__class__",
    "a\nb\x1b[31m\x00c",
    "\u202egnp",
    "x" * 10_000,
    "",
    "..",
    "blocks." * 1000,
    "é" * 300,
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_name_of_a_key_is_shown_short_and_escaped(name: str, tmp_path: Path) -> None:
    for state in (
        {name: torch.ones(2)},
        {**timm_state(), name: torch.ones(2)},
        {**timm_state(), f"head.{name}": torch.ones(2)},
    ):
        message = refusal(state, tmp_path)
        assert message.isprintable() and "\u202e" not in message
    # Where the encoder stands is told as well.
    if name.count(".") < 3:
        wrapped = read(prefixed(f"{name}.", timm_state()), tmp_path)
        assert all(check.value.isprintable() and len(check.value) < 400 for check in wrapped.checks)
    else:
        refusal(prefixed(name, timm_state()), tmp_path)


def test_many_encoders_in_one_file_take_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    anchors = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "pos_embed")
    one = torch.ones(1)
    state = {f"a{index}.{key}": one for index in range(5000) for key in anchors}

    def build(*_: object) -> None:
        raise AssertionError("a network is made before the keys are told apart")

    monkeypatch.setattr(VisionTransformer, "__init__", build)
    torch.save(state, tmp_path / "many.pth")
    start = time.process_time()
    with pytest.raises(CheckpointError):
        read_checkpoint(tmp_path / "many.pth")
    # It was minutes when every encoder looked through all keys.
    assert time.process_time() - start < 10
