"""Names are sane, as the packages' own registries have them; timm's plain architectures are vitviz's own network."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.parity.case import randomised
from tests.reference_packages import timm, transformers
from tests.support.full_size import inferred_config, summary, timm_model
from tests.support.reading import read_checkpoint
from vitviz import CheckpointError
from vitviz.weights import ZOO, NamedModel
from vitviz.weights.families.timm_architectures import architectures

pytestmark = pytest.mark.parity

ENTRIES = list(ZOO.values())
TIMM = [model for model in ENTRIES if model.repository.startswith("timm/")]
OTHERS = [model for model in ENTRIES if model not in TIMM]
LICENCES = {"apache-2.0", "mit", "cc-by-nc-4.0", "dinov3-license"}


def named(model: NamedModel) -> str:
    return model.name


# Names.


def test_every_name_stands_for_its_own_checkpoint() -> None:
    assert len(ZOO) >= 20
    assert [model.name for model in ENTRIES] == list(ZOO)
    assert len({model.repository for model in ENTRIES}) == len(ENTRIES)
    titles = [(model.family, model.title) for model in ENTRIES]
    assert len(set(titles)) == len(titles), "two entries of a menu that read the same"


@pytest.mark.parametrize("model", ENTRIES, ids=named)
def test_an_entry_is_sane(model: NamedModel) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", model.name)
    assert len(model.name) <= 24, "as much room as the list has"
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", model.repository)
    assert model.licence in LICENCES
    assert 1 < model.megabytes < 10_000
    assert model.input_size in (224, 256, 384, 518)
    assert re.fullmatch(r"[A-Z][^\n]*\.", model.known_for)
    assert len(model.known_for) < 130
    assert not re.search(r"[a-z]\. [A-Z]", model.known_for), "one sentence"


# The names, against the packages' own registries.


@pytest.mark.parametrize("model", TIMM, ids=named)
def test_a_name_of_timms_is_in_its_registry(model: NamedModel) -> None:
    name = model.repository.removeprefix("timm/")
    cfg = timm.get_pretrained_cfg(name, allow_unregistered=False)
    assert cfg is not None
    assert cfg.hf_hub_id == model.repository
    assert cfg.hf_hub_filename is None, "its weights stand in the usual file"
    assert cfg.input_size == (3, model.input_size, model.input_size)
    assert cfg.license == model.licence


# What is published of each: its class, its configuration, and the side of the images that its positions are for.
VIT = {"image_size": 224, "patch_size": 16, "num_labels": 1000}
SIZES = {"small": (384, 6, 12), "base": (768, 12, 12), "large": (1024, 16, 24)}


def in_transformers(model: NamedModel) -> tuple[str, dict[str, Any]]:
    if model.repository == "google/vit-base-patch16-224":
        return "ViTForImageClassification", VIT
    kind, _, size = model.repository.removeprefix("facebook/dinov2-").rpartition("-")
    width, heads, depth = SIZES[size]
    settings = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": depth}
    cls = "Dinov2WithRegistersModel" if kind == "with-registers" else "Dinov2Model"
    return cls, {**settings, "image_size": 518, "patch_size": 14}


@pytest.mark.parametrize("model", OTHERS, ids=named)
def test_a_name_of_transformers_has_the_size_of_its_class(model: NamedModel) -> None:
    kind, settings = in_transformers(model)
    cls = getattr(transformers, kind)
    config = cls.config_class(**settings)
    with torch.device("meta"):
        theirs = cls(config)
    assert 4e-6 * sum(each.numel() for each in theirs.parameters()) == pytest.approx(model.megabytes, rel=0.01)
    assert f"/{config.patch_size}" in model.title


# timm's architectures that are vitviz's own network.

NAMES = [name for module in ("vision_transformer", "deit", "eva") for name in timm.list_models(module=module)]
PLAIN = [name for name in NAMES if (row := architectures().get(name)) is not None and row.facts is not None]
SIZES_OF_A_KIND = ("heads", "image_size", "stated", "width", "depth", "mlp_width", "patch_height", "patch_width")


def kind_of(name: str) -> str:
    """What is left of an architecture where it is made small."""
    facts = architectures()[name].facts or {}
    return str([each for each in sorted({**facts, **facts["stated"]}.items()) if each[0] not in SIZES_OF_A_KIND])


FIRST = {kind_of(name): name for name in reversed(PLAIN)}
# Made small, names of one kind are one network, and the first stands for all but in a long run.
EVERY = [pytest.param(name, marks=() if name in FIRST.values() else pytest.mark.long) for name in PLAIN]


def test_many_of_timm_s_names_are_plain() -> None:
    assert len(NAMES) > 200 and len(PLAIN) > 100


@pytest.mark.parametrize("name", EVERY)
def test_a_bare_file_is_what_timm_says_or_is_asked_for(name: str) -> None:
    """Nothing that decides the numbers is guessed: what published models of one shape do not share is asked for."""
    theirs = timm_model(name)
    assert summary(inferred_config(theirs.file, architecture=name)) == theirs.expected
    asked: list[str] = []
    try:
        inferred_config(theirs.file)
    except CheckpointError as error:
        asked = re.findall(r"(heads|activation|norm_epsilon|pooling)=…", str(error))
        assert asked, error
    stated = {fact: theirs.expected[fact] for fact in asked}
    assert summary(inferred_config(theirs.file, **stated)) == theirs.expected


def small_model(name: str) -> tuple[Any, int]:
    """The architecture with two layers of 32 features and 3×3 patches, and the side of its images in pixels."""
    found = re.search(r"patch(\d+)", name)
    side = 3 * (int(found[1]) if found else 16)
    return randomised(timm.create_model(name, embed_dim=32, depth=2, num_heads=2, img_size=side)), side


@pytest.mark.parametrize("name", EVERY)
def test_a_small_one_gives_timms_numbers(name: str, tmp_path: Path) -> None:
    model, side = small_model(name)
    save_file({key: tensor.contiguous() for key, tensor in model.state_dict().items()}, tmp_path / "model.safetensors")
    timm.models._hub.save_config_for_hf(model, tmp_path / "config.json")
    network = read_checkpoint(tmp_path).model.network
    pixels = torch.randn(2, 3, side, side)
    with torch.inference_mode():
        theirs, ours = model(pixels), network(pixels)
    assert theirs.std() > 0.01
    assert math.isclose(float((theirs - ours).abs().max()), 0, abs_tol=3e-5)
