"""What a checkpoint leaves open is asked for, what is said is believed, and what contradicts itself is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import vitviz
from tests.parity import CASES
from tests.parity.states import OPEN, Kept, facts_of, read, refusal
from tests.support.checkpoints import timm_state
from tests.support.long_runs import one_in
from tests.support.package_checkpoints import edit, write
from tests.support.reading import read_checkpoint
from vitviz.errors.kinds import CheckpointError, UnknownFamilyError, VitvizError
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
    "qkv_bias": (False, "qkv_bias = False, its weights have True"),
}


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", OTHERS)
def test_a_configuration_of_another_network_is_refused_at_once(name: str, tmp_path: Path) -> None:
    kept, (value, sentence) = Kept(FIRST["transformers-vit"], tmp_path), OTHERS[name]
    change(tmp_path / "config.json", [name], value)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        kept.read(kept.state)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


@pytest.mark.parametrize("section", ["model_args", "pretrained_cfg"])
def test_a_pooling_of_timm_s_that_is_not_the_architecture_s_is_for_timm(section: str, tmp_path: Path) -> None:
    folder = write("timm", tmp_path)
    assert read_checkpoint(folder).model.network.config.pooling == "cls"
    # What model_args state comes first.
    edit(folder, lambda config: config["model_args"].pop("global_pool"))
    change(folder / "config.json", [section, "global_pool"], "avg")
    with pytest.raises(UnknownFamilyError, match=r"^small: config\.json states global_pool of timm's network$"):
        read_checkpoint(folder)


WRONG: dict[str, Any] = {
    **{"text": "64", "fraction": 64.5, "truth": True, "negative": -64, "zero": 0, "list": [], "nested": {"a": 64}},
    **{"null": None, "infinite": math.inf, "three": [8, 8, 8], "texts": ["a", "b"], "long": "x" * 9999},
}
Entry = list[str]


def change(file: Path, entry: Entry, value: Any) -> None:
    values = json.loads(file.read_text())
    section = values
    for name in entry[:-1]:
        section = section[name]
    section[entry[-1]] = value
    file.write_text(json.dumps(values))


def entries(values: dict[str, Any], place: Sequence[str] = ()) -> Iterator[Entry]:
    """Every entry of an object, and of objects in it."""
    for name, value in values.items():
        yield [*place, name]
        if isinstance(value, dict):
            yield from entries(value, [*place, name])


@pytest.mark.parametrize("package", ["timm", "transformers"])
@pytest.mark.parametrize("value", one_in(6, WRONG))
def test_no_value_of_a_configuration_is_a_traceback(package: str, value: Any, tmp_path: Path) -> None:
    """A value of another kind is refused in one sentence, by vitviz or by the package, or does not matter."""
    folder = write(package, tmp_path)
    for file in sorted(folder.glob("*.json")):
        original = file.read_text()
        for entry in entries(json.loads(original)):
            change(file, entry, value)
            try:
                vitviz.load(folder)
            except VitvizError as error:
                assert "\n" not in str(error) and len(str(error)) < 2000, (entry, error)
            file.write_text(original)


@pytest.mark.parametrize(
    ("file", "entry", "value"),
    [
        ("config.json", "num_attention_heads", "4"),
        ("preprocessor_config.json", "image_mean", "x"),
        ("preprocessor_config.json", "rescale_factor", [1]),
    ],
)
def test_a_value_of_another_kind_is_refused_with_the_files(file: str, entry: str, value: Any, tmp_path: Path) -> None:
    folder = write("transformers", tmp_path)
    change(folder / file, [entry], value)
    with pytest.raises(CheckpointError, match=r"^small: (a value of the wrong kind in the JSON files|config\.json: )"):
        read_checkpoint(folder)


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
    of_pixels = [f"to_patch_embedding.{part}" for part in ("1.weight", "1.bias", "2.weight")]
    narrow = kept.state | {key: kept.state[key][..., :96] for key in of_pixels}
    with pytest.raises(CheckpointError, match="pass patch_size="):
        kept.read(narrow)
    config = kept.read(narrow, patch_size=(4, 8)).model.network.config
    assert (config.patch_height, config.patch_width, config.channels) == (4, 8, 3)
    convolution = Kept(FIRST["timm"], tmp_path / "timm")
    with pytest.raises(CheckpointError, match=r"its patches have 8×8 pixels; leave out patch_size$"):
        convolution.read(convolution.state, patch_size=4)


def test_a_matrix_for_patches_in_an_order_that_nothing_tells_is_refused(tmp_path: Path) -> None:
    state = timm_state()
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"].flatten(1)
    assert "expected a convolution 'width channel height width'" in refusal(state, tmp_path, **OPEN)
