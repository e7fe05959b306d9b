"""Names are sane, as the packages' own registries have them; and what every published architecture needs is inferred.

Full-size models of timm and transformers are built without memory. What vitviz infers from their shapes and from the
configuration that timm writes beside them is compared with the models themselves, and small ones give the same numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.parity.case import randomised
from tests.parity.timm_architectures import kind_of
from tests.reference_packages import timm, transformers
from tests.support.full_size import TimmModel, config_of, inferred_config, outline, summary, timm_model
from tests.support.long_runs import one_in
from tests.support.reading import read_checkpoint
from vitviz import CheckpointError
from vitviz.weights import ZOO, NamedModel
from vitviz.weights.overrides import Stated

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
    assert Stated.of(**model.overrides).facts == model.overrides


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


@pytest.mark.parametrize("model", one_in(4, {model.name: model for model in TIMM}))
def test_a_name_of_timms_is_what_timm_says(model: NamedModel) -> None:
    theirs = timm_model(model.repository.removeprefix("timm/"))
    assert 4e-6 * theirs.parameters == pytest.approx(model.megabytes, rel=0.01)
    assert summary(inferred_config(theirs.file, theirs.config, complete=True, **model.overrides)) == theirs.expected


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


# Every Vision Transformer of timm.

NAMES = [name for module in ("vision_transformer", "deit", "eva") for name in timm.list_models(module=module)]

# What vitviz cannot serve, by its name in timm.
REFUSED = {
    "AIMv2: RMSNorm": r"aimv2_.*",
    "BEiT-3: norms inside attention and MLP": r"beit3_.*",
    "parallel attention and MLP": r"vit_.*_xp_.*|vit_.*_18x2_.*|vit_d?pwee_.*",
    "differential attention": r"vit_d(little|wee|pwee)_.*",
    "norms after attention and MLP": r"vit_.*_rpn_.*",
    "for timm's own tests: RMSNorm, and pooling of the registers too": r"test_vit[34]",
    "rotary positions of another kind": r"eva02_.*|vit_.*_rope_.*|vit_pe_.*",
    "grouped queries": r"vit_.*_sapiens2",
}


def refused(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in REFUSED.values())


SERVED = [name for name in NAMES if not refused(name)]
FIRST = {kind_of(name): name for name in reversed(NAMES)}


def of_every_kind(names: Iterable[str]) -> list[Any]:
    """Names as cases: made small, names of one kind are one network, and the first stands for all but in a long run."""
    return [pytest.param(name, marks=() if name in FIRST.values() else pytest.mark.long) for name in names]


# Nobody has published weights of these.
UNPUBLISHED = {"vit_base_patch16_gap_224"}


def test_the_list_is_the_whole_of_timm() -> None:
    assert len(NAMES) > 200
    assert len(SERVED) > 150
    assert set(SERVED) >= UNPUBLISHED
    for reason, pattern in REFUSED.items():
        assert any(re.fullmatch(pattern, name) for name in NAMES), reason


@pytest.mark.parametrize("name", of_every_kind(SERVED))
def test_everything_is_inferred_as_timm_has_it(name: str) -> None:
    theirs = timm_model(name)
    assert summary(inferred_config(theirs.file, theirs.config, complete=name in FIRST.values())) == theirs.expected


def check_summary(theirs: TimmModel, **overrides: Any) -> None:
    """Without a configuration, all is as in timm; of rotary positions, no tensor has the grid."""
    found = summary(inferred_config(theirs.file, {}, **overrides))
    known = found.keys() - ({"grid"} if "pos_embed" not in theirs.file.groups[""] else set())
    assert {fact: found[fact] for fact in known} == {fact: theirs.expected[fact] for fact in known}


@pytest.mark.parametrize("name", of_every_kind(SERVED))
def test_an_architecture_can_be_said(name: str) -> None:
    # For the other names, the test above reads the same row of the table: timm's configuration says the name as well.
    check_summary(timm_model(name), architecture=name)


@pytest.mark.parametrize("name", of_every_kind(name for name in SERVED if name not in UNPUBLISHED))
def test_without_a_configuration_it_is_the_same_or_asked_for(name: str) -> None:
    """Nothing that decides the numbers is guessed: what published models of one shape do not share is asked for."""
    theirs = timm_model(name)
    asked: list[str] = []
    try:
        inferred_config(theirs.file, {})
    except CheckpointError as error:
        # The first word is one of those in which published checkpoints differ.
        asked = re.findall(r"(heads|activation|norm_epsilon|pooling)=…", str(error))
        assert asked, error
    check_summary(theirs, **{fact: theirs.expected[fact] for fact in asked})


DINOV3_OWN = {
    "reg_token": "storage_tokens",
    "gamma_1": "ls1.gamma",
    "gamma_2": "ls2.gamma",
    "fc1_g": "w1",
    "fc1_x": "w2",
    "fc2": "w3",
}


@pytest.mark.parametrize("layout", ["transformers", "its own"])
def test_dinov3s_h_plus_has_other_heads_than_clips_of_its_width(layout: str) -> None:
    """A file without its configuration says neither how many heads there are nor which function gates."""
    if layout == "transformers":
        # As deep as the published one: of another, it is asked.
        settings = {"num_hidden_layers": 32, "num_register_tokens": 4, "use_gated_mlp": True}
        cls = transformers.DINOv3ViTModel
        with torch.device("meta"):
            model = cls(cls.config_class(hidden_size=1280, num_attention_heads=20, intermediate_size=5120, **settings))
        state = transformers.core_model_loading.revert_weight_conversion(model, model.state_dict())
    else:
        state = {"rope_embed.periods": torch.empty(16), "mask_token": torch.empty(1, 1280)}
        for key, info in timm_model("vit_huge_plus_patch16_dinov3").file.groups[""].items():
            for name, own in DINOV3_OWN.items():
                key = key.replace(name, own)
            state[key] = torch.empty(info.shape, device="meta")
    config = inferred_config(outline(state), {}, complete=True)
    assert (config.heads, config.head_width) == (20, 64)
    assert (config.activation, config.gated_mlp) == ("silu", True)


# These have the very keys of others: only the architecture in their configuration tells them apart.
NAMELESS = {
    *("vit_base_patch16_rpn_224", "eva02_enormous_patch14_clip_224", "test_vit3"),
    # DeiT-III's, in its own layout.
    *(f"vit_{size}_patch16_rope_ape_224" for size in ("small", "base", "large")),
}


EVERYTHING = {"heads": 2, "activation": "gelu", "norm_epsilon": 1e-6, "pooling": "mean"}


@pytest.mark.parametrize("name", of_every_kind(name for name in NAMES if refused(name)))
def test_what_cannot_be_served_is_refused(name: str) -> None:
    model = small_model(name)
    file = outline(model.state_dict())
    for config in (config_of(model), {})[: 1 if name in NAMELESS else 2]:
        with pytest.raises(CheckpointError) as caught:
            inferred_config(file, config, complete=True, **EVERYTHING)
        assert "=…" not in str(caught.value), "as if more could be said that would make it right"


def patch_of(name: str) -> int:
    found = re.search(r"patch(\d+)", name)
    return int(found[1]) if found else 16


def small_model(name: str) -> Any:
    """The architecture with two layers of 32 features and 3×3 patches."""
    options = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 3 * patch_of(name)}
    if "sapiens2" in name:
        options["num_kv_heads"] = (1, 1)
    return randomised(timm.create_model(name, **options))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("small")


@pytest.mark.parametrize("name", of_every_kind(SERVED))
def test_a_small_one_gives_timms_numbers(name: str, folders: Path) -> None:
    model = small_model(name)
    save_file({key: tensor.contiguous() for key, tensor in model.state_dict().items()}, folders / "model.safetensors")
    (folders / "config.json").write_text(json.dumps(config_of(model, with_arguments=True)))
    network = read_checkpoint(folders).model.network
    side = 3 * patch_of(name)
    pixels = torch.randn(2, 3, side, side)
    with torch.inference_mode():
        theirs, ours = model(pixels), network(pixels)
    assert theirs.std() > 0.01
    assert math.isclose(float((theirs - ours).abs().max()), 0, abs_tol=3e-5)
