"""What a checkpoint leaves open is asked for, what is said is believed, and what contradicts itself is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity import CASES
from tests.parity.states import (
    OPEN,
    Kept,
    answer,
    facts_of,
    read,
    refusal,
    save,
)
from tests.support.checkpoints import timm_state
from tests.support.reading import read_checkpoint
from vitviz.errors.kinds import CheckpointError
from vitviz.models.vit import VisionTransformer

pytestmark = pytest.mark.parity
FIRST = {case.family: case for case in reversed(CASES)}


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused here is refused before a network is made."""

    def build(*_: object) -> None:
        raise AssertionError("a network is made")

    monkeypatch.setattr(VisionTransformer, "__init__", build)


# config.json against the weights.

OTHERS = {
    "hidden_size": (32, "width = 32, its weights have 64"),
    "num_hidden_layers": (100, "depth = 100, its weights have 3"),
    "intermediate_size": (128, "mlp_width = 128, its weights have 96"),
    "patch_size": (16, "patch_height = 16, its weights have 8"),
    "num_channels": (1, "channels = 1, its weights have 3"),
    "num_attention_heads": (5, "no multiple of 5 heads"),
}


WRONG = {
    **{"text": "64", "fraction": 64.5, "truth": True, "negative": -64, "zero": 0, "list": [], "nested": {"a": 64}},
    **{"NaN": math.nan, "infinite": math.inf, "three": [8, 8, 8], "list of truths": [True, True], "long": "x" * 9999},
}
# Counts have one parser and sizes another: every value for one entry of each, and one value for every entry.
NAMED = [
    *((name, kind) for name in ("hidden_size", "image_size", "patch_size") for kind in WRONG),
    *((name, "text") for name in OTHERS if name not in ("hidden_size", "patch_size")),
]
VIT, POOLER = FIRST["transformers-vit"], next(case for case in CASES if case.name == "pooler")
TIMM, TOWER = next(case for case in CASES if case.name == "as timm saves it"), FIRST["clip"]
VISION = "vision_cfg in model_cfg in open_clip_config.json"
# A case, an entry with its value, and what is said.
CONFIGURATIONS: list[tuple[Any, str, Any, str]] = [
    *((VIT, name, value, sentence) for name, (value, sentence) in OTHERS.items()),
    *((VIT, name, WRONG[kind], f"{name} = .*expected") for name, kind in NAMED),
    *(
        (VIT, "hidden_act", value, "hidden_act = .*'quick_gelu'")
        for value in ("tanh", "GELU", 3, ["gelu"], {"name": "gelu"}, "x" * 9999)
    ),
    *(
        (POOLER, "pooler_act", value, "^config.json: pooler_act = .*: expected 'tanh'")
        for value in ("relu", 3, ["tanh"])
    ),
    *((VIT, "model_type", value, "model_type .*'dinov2'") for value in ("bert", 7, ["vit"], {"a": 1}, "x" * 9999)),
    *(
        (TIMM, "global_pool", value, "global_pool = .* make a model that pools by 'token'")
        for value in ("max", "avgmax", 7, ["avg"], {"a": 1}, True)
    ),
    *(
        (TOWER, name, value, f"{VISION}: {name} = .*: expected")
        for name, value in (("pool_type", "none"), ("pool_type", ["avg"]), ("head_width", 0), ("head_width", "16"))
    ),
]


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(("case", "name", "value", "sentence"), CONFIGURATIONS)
def test_a_configuration_of_another_network_is_refused_at_once(
    case: Any, name: str, value: Any, sentence: str, tmp_path: Path
) -> None:
    kept = Kept(case, tmp_path)
    file = tmp_path / ("open_clip_config.json" if case is TOWER else "config.json")
    config = json.loads(file.read_text())
    (config["model_cfg"]["vision_cfg"] if case is TOWER else config)[name] = value
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=sentence) as caught:
        kept.read(kept.state)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


# What is left open is asked for.


@pytest.mark.parametrize(("positions", "count"), [(1 + 13, 13), (1 + 2, 2), (1 + 101, 101)])
def test_positions_that_fill_no_square_are_asked_for(positions: int, count: int, tmp_path: Path) -> None:
    message = refusal(timm_state(positions=positions), tmp_path)
    assert f"{positions} positions in 'pos_embed' and 1 prefix tokens do not fit a square image" in message
    assert "pass image_size=(height, width)" in message
    said = read(timm_state(positions=positions), tmp_path, image_size=(8, 8 * count))
    config = said.model.network.config
    assert (config.image_height, config.image_width) == (8, 8 * count)
    assert facts_of(said)["image_size"] == f"(8, {8 * count})"
    wrong = refusal(timm_state(positions=positions), tmp_path, image_size=(16, 8 * count))
    assert f"do not fit an image of 16×{8 * count} in patches of 8×8" in wrong


def test_positions_of_patches_that_overlap_are_called_so(tmp_path: Path) -> None:
    # 8 pixels every 6, as TransReID has 16 every 12.
    message = refusal(timm_state(positions=1 + 21 * 10), tmp_path, image_size=(128, 64))
    assert "but one in patches that overlap, every 6 pixels, which vitviz does not read" in message
    assert "overlap" not in refusal(timm_state(positions=1 + 21 * 11), tmp_path, image_size=(128, 64))


def test_what_a_file_leaves_open_is_asked_for_at_once_with_what_is_usual(tmp_path: Path) -> None:
    state = timm_state(width=72)
    message = refusal(state, tmp_path, **dict.fromkeys(OPEN))
    assert "the file leaves facts open, and no published checkpoint that vitviz knows has these shapes; " in message
    usual = "norm_epsilon=… (usually 1e-06), activation=… (usually 'gelu'), pooling=… (usually 'cls')"
    asked = f"pass architecture=… (timm's name of it), or heads=…, {usual}"
    assert message.endswith(asked)
    for fact in ("heads", "norm_epsilon", "activation", "pooling"):
        assert re.search(rf"or {fact}=…( \(usually [^)]*\))?$", refusal(state, tmp_path, **{fact: None}))
    for heads in (1, 2, 9):
        assert read(state, tmp_path, heads=heads).model.network.config.heads == heads
    assert "72 features are no multiple of 7 heads" in refusal(state, tmp_path, heads=7)


def test_clip_alone_does_not_say_which_gelu_it_was_trained_with(tmp_path: Path) -> None:
    kept = Kept(FIRST["clip"], tmp_path)
    visual = {key: tensor for key, tensor in kept.state.items() if key.startswith("visual.")}
    alone = tmp_path / "alone"
    alone.mkdir()
    message = refusal(visual, alone, **{**dict.fromkeys(OPEN), "heads": 4})
    assert "pass norm_epsilon=… (usually 1e-05), activation=… (usually 'gelu'), pooling=… (usually 'cls')" in message
    rest = {"norm_epsilon": 1e-5, "final_norm": "before pooling", "position_rule": None}
    for activation in ("gelu", "quick gelu"):
        reading = read(visual, alone, heads=4, activation=activation, **rest)
        assert reading.model.network.config.activation == activation


def test_older_releases_of_vit_pytorch_pool_in_two_ways_with_the_same_tokens(tmp_path: Path) -> None:
    kept = Kept(FIRST["vit-pytorch"], tmp_path)
    older = {**kept.state, "cls_token": kept.state["cls_token"][None]}
    with pytest.raises(CheckpointError, match=r"pass pooling=… \(usually 'cls'\)"):
        kept.read(older)
    pixels = torch.randn(1, 3, 32, 32)
    newer = kept.read(kept.state).model.network(pixels)
    assert torch.equal(kept.read(older, pooling="cls").model.network(pixels), newer)
    assert not torch.equal(kept.read(older, pooling="mean of all").model.network(pixels), newer)


SAID = {
    "heads": 6,
    "activation": "relu",
    "pooling": "mean",
    "final_norm": "after pooling",
    "norm_epsilon": 0.25,
    "position_rule": "fixed",
    "image_size": (16, 64),
    "probability": "sigmoid",
}


@pytest.mark.parametrize("fact", SAID)
def test_what_is_said_overrides_and_stands_among_the_checks(fact: str, tmp_path: Path) -> None:
    reading = read(timm_state(), tmp_path, **{fact: SAID[fact]})
    config = reading.model.network.config
    found = (config.image_height, config.image_width) if fact == "image_size" else getattr(config, fact)
    assert found == SAID[fact]
    row = (fact, str(SAID[fact]), "stated by the user")
    assert row in [(check.fact, check.value, check.source) for check in reading.checks]
    unsaid = read(timm_state(), tmp_path)
    assert row not in [(check.fact, check.value, check.source) for check in unsaid.checks]
    pixels = torch.randn(1, 3, *found) if fact == "image_size" else torch.randn(1, 3, 32, 32)
    # At the trained grid no rule is used, a norm before taking one token is the same after it, and logits are logits.
    if fact not in ("position_rule", "final_norm", "probability"):
        assert not torch.equal(reading.model.network(pixels), unsaid.model.network(pixels))


def test_a_patch_size_is_asked_for_where_pixels_make_no_square(tmp_path: Path) -> None:
    kept = Kept(FIRST["vit-pytorch"], tmp_path)
    narrow = {
        key: tensor[..., :96] if key.startswith("to_patch_embedding.") else tensor for key, tensor in kept.state.items()
    }
    for part in ("weight", "bias"):
        narrow[f"to_patch_embedding.3.{part}"] = kept.state[f"to_patch_embedding.3.{part}"]
    narrow["to_patch_embedding.2.bias"] = kept.state["to_patch_embedding.2.bias"]
    with pytest.raises(CheckpointError, match="pass patch_size="):
        kept.read(narrow)
    config = kept.read(narrow, patch_size=(4, 8)).model.network.config
    assert (config.patch_height, config.patch_width, config.channels) == (4, 8, 3)


# Values of the weights.


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["blocks.1.mlp.fc2.weight", "pos_embed", "head.bias"])
def test_a_weight_that_is_no_number_is_refused_by_its_key(key: str, value: float, tmp_path: Path) -> None:
    state = timm_state()
    state[key].view(-1)[-1] = value
    assert f"values that are not finite in '{key}'" in refusal(state, tmp_path)


@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [
        *[(suffix, dtype) for suffix in (".pth", ".safetensors", ".npz") for dtype in (torch.float16, torch.float64)],
        # NumPy has no such type.
        *[(suffix, torch.bfloat16) for suffix in (".pth", ".safetensors")],
    ],
)
def test_other_precisions_are_read_as_float32(suffix: str, dtype: torch.dtype, tmp_path: Path) -> None:
    state = {key: tensor.to(dtype) for key, tensor in timm_state().items()}
    save(tmp_path / f"small{suffix}", state)
    reading = read_checkpoint(tmp_path / f"small{suffix}", **OPEN)
    assert {parameter.dtype for parameter in reading.model.network.parameters()} == {torch.float32}
    rounded = {key: tensor.float() for key, tensor in state.items()}
    assert torch.equal(answer(reading), answer(read(rounded, tmp_path)))


def test_a_matrix_for_patches_in_an_order_that_nothing_tells_is_refused(tmp_path: Path) -> None:
    state = timm_state()
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"].flatten(1)
    assert "expected a convolution 'width channel height width'" in refusal(state, tmp_path, **OPEN)
