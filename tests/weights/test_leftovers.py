"""Classifiers of other shapes, what training leaves beside a network, and what the user leaves out."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitviz
from tests.parity.case import randomised
from tests.parity.states import WIDTH, answer, facts_of, prefixed, read, refusal
from tests.reference_packages import timm, transformers
from tests.support.checkpoints import State, timm_state
from tests.support.reading import read_checkpoint
from vitviz.errors.kinds import CheckpointError

pytestmark = pytest.mark.parity

HEAD = {"head.weight", "head.bias"}


def renamed(name: str, state: State | None = None) -> State:
    """The small state dict with its classifier under another name."""
    whole = timm_state() if state is None else state
    return {f"{name}.{key.removeprefix('head.')}" if key in HEAD else key: tensor for key, tensor in whole.items()}


@pytest.mark.parametrize("name", ["head.1", "head.0", "classifier", "classifier.1", "fc", "heads", "head.fc"])
def test_one_linear_map_under_a_classifiers_name_is_the_classifier(name: str, tmp_path: Path) -> None:
    reading = read(renamed(name), tmp_path)
    assert torch.equal(answer(reading), answer(read(timm_state(), tmp_path, "plain.pth")))
    assert facts_of(reading)["classifier"] == f"{name}.weight"
    wrapped = {("" if key.startswith(name) else "vit.") + key: tensor for key, tensor in renamed(name).items()}
    assert torch.equal(answer(read(wrapped, tmp_path, "outside.pth")), answer(reading))


@pytest.mark.parametrize(
    "head",
    [
        nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, 7)),
        nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 7)),
        nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 7)),
    ],
    ids=["MLP", "norm", "batch norm"],
)
def test_a_classifier_of_several_layers_is_refused_and_left_out_by_hand(head: nn.Module, tmp_path: Path) -> None:
    features = timm_state(classes=None)
    state = {**features, **prefixed("head.", head.state_dict())}
    assert "; ignore=['head.*'] leaves them out" in refusal(state, tmp_path, family="timm")
    reading = read(state, tmp_path, family="timm", ignore=["head.*"])
    assert torch.equal(answer(reading), answer(read(features, tmp_path, "plain.pth", family="timm")))
    apart = {"head.0.bias": torch.ones(7), "head.1.weight": torch.ones(7, WIDTH)}
    assert "surplus 'head.0.bias', 'head.1.weight'" in refusal({**features, **apart}, tmp_path, family="timm")


LEFT_BY_TRAINING = [
    *("criterion.weight", "loss_fn.weight", "ce_loss.weight", "train_acc.confmat", "val_accuracy.tp", "metrics.f1.tp"),
    *("n_averaged", "queue", "queue_ptr", "center"),
]


@pytest.mark.parametrize("key", LEFT_BY_TRAINING)
@pytest.mark.parametrize("prefix", ["", "model."])
def test_what_training_leaves_beside_a_network_is_left_out(key: str, prefix: str, tmp_path: Path) -> None:
    reading = read({**prefixed(prefix, timm_state()), key: torch.ones(7)}, tmp_path)
    assert reading.ignored == {key: "what training leaves beside the network"}
    assert torch.equal(answer(reading), answer(read(timm_state(), tmp_path, "plain.pth")))


# Modules of people's own around an encoder: what their classifier reads is in no file.

SMALL = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96}
BARE = {"heads": 4, "activation": "gelu", "norm_epsilon": 1e-12}


class Around(nn.Module):
    """An encoder of transformers with a classifier that reads one of its outputs."""

    def __init__(self, encoder: nn.Module, reads: str, classifier: str = "classifier") -> None:
        super().__init__()
        self.vit, self.reads = encoder, reads
        self.add_module(classifier, nn.Linear(48, 5))
        self.top = classifier

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        found = self.vit(pixel_values=pixels)
        tokens = found.last_hidden_state
        read = {"cls": tokens[:, 0], "mean": tokens[:, 1:].mean(1), "pooler": found.pooler_output}[self.reads]
        return self.get_submodule(self.top)(read)


def vit(pooler: bool) -> nn.Module:
    config = transformers.ViTConfig(image_size=32, patch_size=8, **SMALL)
    return transformers.ViTModel(config, add_pooling_layer=pooler).eval()


def saved(module: nn.Module, folder: Path) -> Path:
    torch.save(module.state_dict(), folder / "mine.pth")
    return folder / "mine.pth"


@pytest.mark.parametrize("reads", ["cls", "mean"])
def test_what_a_classifier_reads_is_asked_for_where_no_configuration_says_it(reads: str, tmp_path: Path) -> None:
    module = Around(vit(pooler=False), reads)
    path, pixels = saved(module, tmp_path), torch.randn(2, 3, 32, 32)
    with pytest.raises(CheckpointError, match=r"pass pooling=… \(usually 'cls'\)"):
        read_checkpoint(path, **BARE)
    network = read_checkpoint(path, **BARE, pooling=reads).model.network
    torch.testing.assert_close(network(pixels), module(pixels), rtol=0, atol=1e-5)


def test_a_pooler_beside_a_classifier_is_not_taken_for_granted(tmp_path: Path) -> None:
    module = Around(vit(pooler=True), "cls")
    path, pixels = saved(module, tmp_path), torch.randn(2, 3, 32, 32)
    for overrides in (BARE, {**BARE, "pooling": "cls"}):
        with pytest.raises(CheckpointError, match=r"a pooler beside a classifier.*ignore=\['vit\.pooler\.\*'\]"):
            read_checkpoint(path, **overrides)
    network = read_checkpoint(path, **BARE, pooling="cls", ignore=["vit.pooler.*"]).model.network
    torch.testing.assert_close(network(pixels), module(pixels), rtol=0, atol=1e-5)


def test_a_classifier_of_another_name_around_an_encoder_of_transformers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"surplus 'fc\.weight', 'fc\.bias'; .*; ignore=\['fc\.\*'\]"):
        read_checkpoint(saved(Around(vit(pooler=False), "cls", "fc"), tmp_path), **BARE, pooling="cls")


@pytest.mark.parametrize("name", ["fc", "linear_head"])
def test_a_linear_map_around_a_backbone_of_timm_is_assumed_to_read_what_is_pooled(name: str, tmp_path: Path) -> None:
    around = {("" if key.startswith(name) else "backbone.") + key: tensor for key, tensor in renamed(name).items()}
    assert "pass architecture=…" in refusal(around, tmp_path, pooling=None)
    assert f"classifier {name}.weight" in read(around, tmp_path).model.assumptions


def test_of_several_encoders_the_chosen_one_is_assumed_and_another_can_be_chosen(tmp_path: Path) -> None:
    state = timm_state()
    averaged = {key: tensor + 0.01 for key, tensor in state.items()}
    both = {"model": state, "model_ema": averaged}
    reading = read(both, tmp_path)
    assert "encoder 'model_ema'" in reading.model.assumptions
    assert torch.equal(answer(reading), answer(read({"model": averaged}, tmp_path, "averaged.pth")))
    chosen = read(both, tmp_path, ignore=["model_ema.*"])
    assert not any(text.startswith("encoder") for text in chosen.model.assumptions)
    assert torch.equal(answer(chosen), answer(read({"model": state}, tmp_path, "plain.pth")))


# What the user leaves out.


def test_keys_are_left_out_by_hand(tmp_path: Path) -> None:
    state = {**timm_state(), "adapter.down.weight": torch.ones(3), "adapter.up.weight": torch.ones(3)}
    found = r"surplus 'adapter\.down\.weight', 'adapter\.up\.weight'; if .*=… .*; ignore=\['adapter\.\*'\] leaves"
    assert re.search(found, refusal(state, tmp_path))
    reading = read(state, tmp_path, ignore=["adapter.*"])
    assert torch.equal(answer(reading), answer(read(timm_state(), tmp_path, "plain.pth")))
    assert reading.ignored == dict.fromkeys(("adapter.down.weight", "adapter.up.weight"), "left out by hand")
    headless = read(timm_state(), tmp_path, ignore=["head.*"], family="timm")
    assert headless.model.labels == ()
    assert answer(headless).shape == (1, WIDTH)


def _proposed(text: str) -> list[str]:
    """The patterns of ``ignore`` that a message or a source proposes."""
    (proposal,) = re.findall(r"ignore=(\[.*?'\])", text)
    patterns: list[str] = ast.literal_eval(proposal)
    return patterns


SURPLUS: dict[str, list[str]] = {
    "a part": ["decoder.0.weight", "decoder.1.norm.weight"],
    "in every layer": ["blocks.0.attn.gate", "blocks.1.attn.gate"],
    "in one layer": ["blocks.1.attn.gate"],
    "beside a needed key": ["head.scale", "norm.scale", "cls_token.scale"],
    "of signs that are patterns": ["extra[0]*", "what?"],
    "of a part whose name is a pattern": ["head [v2].weight", "head [v2].bias"],
    "of the whole model": ["pos_bias", "net.tail.weight"],
}


@pytest.mark.parametrize("keys", SURPLUS.values(), ids=SURPLUS)
@pytest.mark.parametrize("prefix", ["", "model.vit."])
def test_what_ignore_a_message_proposes_works(prefix: str, keys: list[str], tmp_path: Path) -> None:
    whole = {"state_dict": prefixed(prefix, {**timm_state(), **dict.fromkeys(keys, torch.ones(2))})}
    reading = read(whole, tmp_path, ignore=_proposed(refusal(whole, tmp_path)))
    assert torch.equal(answer(reading), answer(read(timm_state(), tmp_path, "plain.pth")))
    assert {key.removeprefix("state_dict." + prefix) for key in reading.ignored} == set(keys)


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [
        (["haed.*"], r"no key like 'haed.\*', which is to be left out; expected one of '"),
        (["*"], "its keys are no tensors"),
        ("head.*", r"ignore = 'head.\*': expected a list of patterns of keys, such as \['head.\*'\]"),
        ([""], "expected a list of patterns"),
    ],
    ids=str,
)
def test_a_pattern_that_cannot_be_meant_is_refused(patterns: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        read(timm_state(), tmp_path, ignore=patterns)


# A configuration beside a file with an unusual name.


def _small_folder(folder: Path) -> transformers.ViTForImageClassification:
    """A folder of transformers whose weights have an unusual name."""
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=3, **small)
    model = randomised(transformers.ViTForImageClassification(config))
    model.save_pretrained(folder)
    (folder / "model.safetensors").rename(folder / "best.safetensors")
    return model


def test_the_only_file_of_a_folder_is_read_with_its_configuration(tmp_path: Path) -> None:
    module, pixels = _small_folder(tmp_path), torch.randn(2, 3, 32, 32)
    model = vitviz.load(tmp_path / "best.safetensors")
    torch.testing.assert_close(model.network(pixels), module(pixels).logits, rtol=0, atol=1e-5)
    assert model.network.config.heads == 2
    assert [text.split()[0] for text in model.assumptions] == ["preprocessing"], "no file states it"


def test_a_configuration_that_may_be_of_another_file_is_said_not_to_be_read(tmp_path: Path) -> None:
    _small_folder(tmp_path)
    torch.save({"lr": torch.ones(1)}, tmp_path / "optimizer.pt")
    with pytest.raises(CheckpointError, match=r"heads=….*the configuration beside it is not read"):
        vitviz.load(tmp_path / "best.safetensors")
    model = vitviz.load(tmp_path / "best.safetensors", heads=4, activation="gelu", norm_epsilon=1e-12, pooling="cls")
    assert "configuration not read" in model.assumptions


@pytest.mark.parametrize("content", ['{"lr": 0.1}', "[1, 2]"])
def test_settings_of_something_else_are_not_read(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    assert torch.equal(answer(read(timm_state(), tmp_path)), answer(read(timm_state(), tmp_path, "again.pth")))


# What is assumed is shown.


VIT_SMALL = "vit_small_patch16_224"


@pytest.fixture(scope="module")
def moco() -> nn.Module:
    """MoCo v3's ViT-S, which has twice the heads of timm's and the same shapes."""
    return randomised(timm.create_model(VIT_SMALL, num_heads=12, depth=12, num_classes=0))


def test_a_name_of_timms_does_not_settle_the_heads_of_other_code(moco: nn.Module, tmp_path: Path) -> None:
    path, pixels = tmp_path / "vit-s-300ep.pth.tar", torch.randn(1, 3, 224, 224)
    torch.save({"state_dict": prefixed("module.base_encoder.", moco.state_dict())}, path)
    with pytest.raises(CheckpointError, match=r"has 6 heads, but these keys, 'module\.base_encoder\.…'.*heads=…"):
        vitviz.load(path, architecture=VIT_SMALL)
    model = vitviz.load(path, architecture=VIT_SMALL, heads=12)
    torch.testing.assert_close(model.network(pixels), moco(pixels), rtol=0, atol=1e-4)
    # Where timm does not take the file either, the reasons of both are said.
    head = nn.Sequential(nn.Linear(384, 8), nn.BatchNorm1d(8))
    torch.save(prefixed("encoder.", {**moco.state_dict(), **prefixed("head.", head.state_dict())}), path)
    with pytest.raises(
        CheckpointError, match=r"timm: opening .*; vitviz's own network: .*ignore=\['encoder\.head\.\*'\]"
    ):
        vitviz.load(path, architecture=VIT_SMALL)


def test_heads_that_are_stated_come_before_those_of_the_name(moco: nn.Module, tmp_path: Path) -> None:
    path, pixels = tmp_path / "encoder.pth", torch.randn(1, 3, 224, 224)
    torch.save(prefixed("model.", moco.state_dict()), path)
    assert vitviz.load(path, architecture=VIT_SMALL).network.config.heads == 6
    model = vitviz.load(path, architecture=VIT_SMALL, heads=12)
    torch.testing.assert_close(model.network(pixels), moco(pixels), rtol=0, atol=1e-4)


def test_of_encoders_side_by_side_one_is_left_out_by_hand(tmp_path: Path) -> None:
    states = {f"model.{name}.": timm_state(seed=seed) for seed, name in enumerate(("ema", "raw"))}
    both = {key: tensor for prefix, state in states.items() for key, tensor in prefixed(prefix, state).items()}
    chosen = read(both, tmp_path, ignore=_proposed(refusal(both, tmp_path)))
    assert not any(check.fact == "encoder" and check.assumed for check in chosen.checks)
    assert torch.equal(answer(chosen), answer(read(states["model.ema."], tmp_path, "plain.pth")))
