"""Every entry of a transformers configuration: used as the package uses it, known to change nothing, or refused."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from dataclasses import MISSING, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.parity.case import randomised
from tests.parity.package_answers import inputs_of
from tests.reference_packages import transformers
from tests.support.long_runs import one_in
from tests.support.reading import read_checkpoint
from vitviz.errors.kinds import CheckpointError
from vitviz.models.activations import ACTIVATIONS as OURS
from vitviz.weights.families.transformers.classes import CLASSES, COMMON, COMPOSITES
from vitviz.weights.families.transformers.towers import ACTIVATIONS

pytestmark = pytest.mark.parity

EXACT = 1e-5
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
MODELS = {
    "vit": "vit.ViTModel",
    "deit": "deit.DeiTModel",
    "vit_mae": "vit_mae.ViTMAEModel",
    "vit_msn": "vit_msn.ViTMSNModel",
    "ijepa": "ijepa.IJepaModel",
    "flava_image_model": "flava.FlavaImageModel",
    "dinov2": "dinov2.Dinov2Model",
    "dinov2_with_registers": "dinov2_with_registers.Dinov2WithRegistersModel",
    "dinov3_vit": "dinov3_vit.DINOv3ViTModel",
    "clip_vision_model": "clip.CLIPVisionModel",
    "metaclip_2_vision_model": "metaclip_2.MetaClip2VisionModel",
    "chinese_clip_vision_model": "chinese_clip.ChineseCLIPVisionModel",
    "altclip_vision_model": "altclip.AltCLIPVisionModel",
    "clipseg_vision_model": "clipseg.CLIPSegVisionModel",
    "git_vision_model": "git.GitVisionModel",
    "siglip_vision_model": "siglip.SiglipVisionModel",
    "siglip2_vision_model": "siglip2.Siglip2VisionModel",
}
every_class = pytest.mark.parametrize("kind", CLASSES)
PIXELS = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def module_of(kind: str, what: str) -> Any:
    package = MODELS[kind].partition(".")[0]
    return importlib.import_module(f"{transformers.__name__}.models.{package}.{what}_{package}")


def config_class(kind: str) -> Any:
    return getattr(module_of(kind, "configuration"), CLASSES[kind].name)


def model_class(kind: str) -> Any:
    return getattr(module_of(kind, "modeling"), MODELS[kind].partition(".")[2])


def small(kind: str, **options: Any) -> Any:
    known = {field.name for field in fields(config_class(kind))}
    values = {**SMALL, "intermediate_size": 96, "num_patches": 16, **options}
    return config_class(kind)(**{name: value for name, value in values.items() if name in known})


def matches(name: str, patterns: Any) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# The tables.


def test_every_class_has_a_model_of_the_package() -> None:
    assert CLASSES.keys() == MODELS.keys()


def defaults_of(cls: Any) -> dict[str, Any]:
    """The fields of a class and of those before it, but not of the one that all have."""
    common = {field.name for field in fields(transformers.PreTrainedConfig)}
    own = [field for field in fields(cls) if field.name not in common]
    return {field.name: None if field.default is MISSING else field.default for field in own}


@every_class
def test_defaults_are_those_of_the_class_and_every_entry_of_it_is_known(kind: str) -> None:
    table, cls = CLASSES[kind], config_class(kind)
    assert cls.model_type == kind
    theirs = defaults_of(cls)
    unknown = {name for name in theirs if name not in table.defaults and not matches(name, table.harmless | COMMON)}
    assert unknown == set()
    assert {name: theirs[name] for name in table.defaults} == dict(table.defaults)
    assert not [name for name in table.defaults if matches(name, table.harmless | COMMON)]
    # What it writes besides.
    assert not [name for name in cls().to_dict() if not matches(name, {*table.defaults, *table.harmless, *COMMON})]


def test_what_every_configuration_has_is_known() -> None:
    assert not transformers.PreTrainedConfig().to_dict().keys() - COMMON


@pytest.mark.parametrize("model_type", COMPOSITES)
def test_a_model_around_a_tower_is_described_as_its_class_is(model_type: str) -> None:
    table = COMPOSITES[model_type]
    cls = type(transformers.AutoConfig.for_model(model_type))
    spec = cls.sub_configs_defaults[table.section]
    assert spec.model_type == table.towers[0]
    assert table.reads_tower_type == (spec.config_class is transformers.AutoConfig)
    assert table.legacy == (f"{table.section}_dict" in inspect.getsource(cls))
    whole = CLASSES[table.towers[0]]
    assert not [name for name in spec.init_kwargs if not matches(name, whole.harmless)]
    unknown = [name for name in defaults_of(cls) if not matches(name, {table.section, *table.harmless, *COMMON})]
    assert unknown == []


def test_activations_are_those_of_the_package() -> None:
    values = torch.linspace(-6, 6, 1001)
    for name in transformers.activations.ACT2CLS:
        if name in ACTIVATIONS:
            theirs = transformers.activations.ACT2FN[name](values)
            assert float((OURS[ACTIVATIONS[name]](values) - theirs).abs().max()) < 2e-6, name
    assert ACTIVATIONS.keys() <= transformers.activations.ACT2CLS.keys()


# Every entry, changed.


def answer_of_package(kind: str, values: dict[str, Any], state: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """What the package's model of this configuration makes of these weights; None where it does not take them."""
    try:
        config = config_class(kind)(**values)
        config._attn_implementation = "eager"
        # The weights of the state take the place of those that it would draw.
        with transformers.initialization.no_init_weights():
            network = model_class(kind)(config).eval()
        # Otherwise the encoder sees a part of the patches.
        if kind == "vit_mae":
            config.mask_ratio = 0.0
        network.load_state_dict(state)
        with torch.inference_mode():
            found = network(**inputs_of(config, PIXELS), return_dict=True)
    except Exception:
        return None
    pooled = found.get("pooler_output")
    if pooled is not None:
        return pooled
    tokens = found.last_hidden_state
    return tokens.mean(1) if kind in NO_CLS else tokens[:, 0]


NO_CLS = (
    "ijepa",
    "siglip_vision_model",
    "siglip2_vision_model",
)
# An entry of which vitviz uses nothing: it shows the tower where all patches are seen.
OTHERS: dict[str, list[Any]] = {
    "hidden_act": [*transformers.activations.ACT2CLS],
    "pooler_act": ["relu", "tanh", "gelu"],
    "pooler_output_size": [None, 32, 64],
    "image_size": [16, 64, [32, 32], [16, 64]],
    "patch_size": [4, 16, [8, 8], [4, 16]],
    "num_attention_heads": [1, 2, 3, 8, 16],
    "layer_norm_eps": [1e-12, 1e-3, 1],
    "mlp_ratio": [1, 2.5, 8],
    "dtype": ["float16"],
    "torch_dtype": ["bfloat16"],
    "problem_type": ["regression"],
    "id2label": [{"0": "a", "1": "b", "2": "c"}],
    "label2id": [{"a": 0}],
    "architectures": [["Other"]],
    "stage_names": [["stem"]],
    "out_features": [["stem"], ["stage1"]],
    "out_indices": [[0]],
    "pruned_heads": [{"0": [1]}],
    "per_layer_config": [{"0": {"num_attention_heads": 2}}],
    "head_dim": [32],
    "attn_implementation": ["eager"],
    "chunk_size_feed_forward": [1],
}
# Nothing of a model is left, or the file is another's.
NAMES = {"model_type", "transformers_version"}


def other_values(name: str, value: Any) -> list[Any]:
    if name in OTHERS:
        return [other for other in OTHERS[name] if other != value]
    if isinstance(value, bool) or value is None:
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value + 2]
    if isinstance(value, float):
        return [value + 0.25]
    return []


# Of these, only some values change what a network computes.
MUST_CHANGE = {"hidden_act", "num_attention_heads", "layer_norm_eps"}


def entries(kind: str, config: dict[str, Any], every: bool) -> Iterator[tuple[str, Any]]:
    """Every entry with its other values; of what all classes have alike, in one of them.

    Args:
        kind: of the class.
        config: its entries.
        every: with each of the other values; else half of them with one, which are others in the next class.
    """
    beside = {"pruned_heads": {}, "per_layer_config": None, "head_dim": None, "top_k": 50, "is_decoder": False}
    turn = list(CLASSES).index(kind)
    for number, (name, value) in enumerate({**beside, **config}.items()):
        alike = kind != "vit" and (name in COMMON or name == "hidden_act")
        others = other_values(name, value) if name not in NAMES else []
        if others and not every and name not in MUST_CHANGE:
            others = [others[turn // 2 % len(others)]] if (number + turn) % 2 else []
        for other in others:
            if not alike or (name == "hidden_act" and other in ("relu", "tanh", "gelu_new")):
                yield name, other


@pytest.mark.parametrize("kind", one_in(7, {kind: kind for kind in CLASSES}))
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["one each", "every value"])
def test_an_entry_changes_what_it_changes_in_the_package_or_is_refused(kind: str, every: bool, tmp_path: Path) -> None:
    """Half of the entries of some classes in one other value; a long run tries every value of all."""
    torch.manual_seed(0)
    network = randomised(model_class(kind)(small(kind)))
    network.save_pretrained(tmp_path)
    state, file = network.state_dict(), tmp_path / "config.json"
    config = {**small(kind).to_dict(), **json.loads(file.read_text())}
    before = answer_of_package(kind, config, state)
    assert before is not None
    table, used = CLASSES[kind], set()
    for name, value in entries(kind, config, every):
        changed = {**config, name: value}
        file.write_text(json.dumps(changed, default=str))
        try:
            found = read_checkpoint(tmp_path).model.network
        except CheckpointError as error:
            assert "\n" not in str(error)
            harmless = matches(name, table.harmless | COMMON) and name not in ("id2label", "label2id")
            assert not harmless, f"{name} = {value!r}: {error}"
            continue
        theirs = answer_of_package(kind, changed, state)
        if theirs is not None:
            assert float((found(PIXELS) - theirs).abs().max()) < EXACT, f"{name} = {value!r}"
            if float((theirs - before).abs().max()) > 10 * EXACT:
                used.add(name)
    assert MUST_CHANGE - used == set()


LEGACY = [name for name, table in COMPOSITES.items() if table.legacy and table.section == "vision_config"]


@pytest.mark.parametrize("model_type", LEGACY)
def test_a_dictionary_beside_the_part_comes_before_it(model_type: str, tmp_path: Path) -> None:
    # As the first configurations of CLIP were written: what it leaves out is as in the class.
    kind = COMPOSITES[model_type].towers[0]
    network = randomised(model_class(kind)(small(kind)))
    network.save_pretrained(tmp_path)
    part = {
        **small(kind).to_dict(),
        "pruned_heads": {},
        "top_k": 50,
        "num_attention_heads": 2,
        "hidden_act": "relu",
        "layer_norm_eps": 1e-3,
    }
    before = {**SMALL, "intermediate_size": 96}
    values = {"model_type": model_type, "vision_config": part, "vision_config_dict": before}
    (tmp_path / "config.json").write_text(json.dumps(values, default=str))
    theirs = type(transformers.AutoConfig.for_model(model_type))(**values).vision_config
    assert (theirs.num_attention_heads, theirs.hidden_act, theirs.layer_norm_eps) == (4, "quick_gelu", 1e-5)
    answer = answer_of_package(kind, theirs.to_dict(), network.state_dict())
    found = read_checkpoint(tmp_path).model.network
    assert answer is not None and float((found(PIXELS) - answer).abs().max()) < EXACT
    (tmp_path / "config.json").write_text(json.dumps({**values, "vision_config": {**part, "unheard_of": 3}}))
    with pytest.raises(CheckpointError, match=r"vision_config\.unheard_of = 3"):
        read_checkpoint(tmp_path)


def beside_text(folder: Path, **entries: Any) -> None:
    """A tower as CLIP keeps it, with entries of the whole configuration."""
    network = randomised(model_class("clip_vision_model")(small("clip_vision_model")))
    inside = {name.removeprefix("vision_model."): tensor for name, tensor in network.state_dict().items()}
    tensors = {f"vision_model.{name}": tensor for name, tensor in inside.items()}
    torch.save(tensors, folder / "pytorch_model.bin")
    part = {**SMALL, "intermediate_size": 96, "model_type": "clip_vision_model"}
    values = {"model_type": "clip", "vision_config": part, "text_config": {"a": 1}}
    (folder / "config.json").write_text(json.dumps({**values, **entries}))


def test_a_tower_beside_another_says_what_is_left_out(tmp_path: Path) -> None:
    beside_text(tmp_path)
    card = read_checkpoint(tmp_path).model.card
    assert card["left out"] == "the text tower (a tower inside of 'clip' in its config.json)"


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"quantization_config": {"bits": 4}}, "quantization_config = "),
        ({"unheard_of": 1}, "unheard_of = 1"),
        # As CLIP's own is, where the file says nothing of it.
        ({"vision_config": None}, "64 features are no multiple of 12 heads"),
        ({"model_type": "llava"}, "its part for pictures opens as a module"),
    ],
    ids=["quantised", "unknown", "no part", "in a language model"],
)
def test_what_stands_beside_a_tower_is_read_too(entries: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    beside_text(tmp_path, **entries)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(tmp_path)
    assert sentence in str(caught.value)


def test_a_configuration_without_its_model_type_is_refused(tmp_path: Path) -> None:
    transformers.ViTModel(small("vit")).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    del values["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(
        CheckpointError,
        match=r"config\.json: model_type = .nothing.: expected .vit., .vit_msn. or .vision-encoder-decoder.",
    ):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("kind", "other"),
    [("siglip2_vision_model", "siglip_vision_model"), ("siglip_vision_model", "siglip2_vision_model")],
)
def test_another_patch_embedding_than_that_of_the_configuration_is_refused(
    kind: str, other: str, tmp_path: Path
) -> None:
    torch.save(model_class(kind)(small(kind)).state_dict(), tmp_path / "pytorch_model.bin")
    config = {**small(other).to_dict(), "num_patches": 16, "image_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    with pytest.raises(CheckpointError, match=r"embeddings\.patch_embedding\.weight. has the shape"):
        read_checkpoint(tmp_path)


# Names in memory.

SAVED = {
    "ViTModel": "ViTConfig",
    "ViTForImageClassification": "ViTConfig",
    "ViTForMaskedImageModeling": "ViTConfig",
    "DeiTForImageClassification": "DeiTConfig",
    "DeiTForImageClassificationWithTeacher": "DeiTConfig",
    "ViTMAEModel": "ViTMAEConfig",
    "ViTMAEForPreTraining": "ViTMAEConfig",
    "ViTMSNForImageClassification": "ViTMSNConfig",
    "IJepaForImageClassification": "IJepaConfig",
    "Dinov2Model": "Dinov2Config",
    "Dinov2ForImageClassification": "Dinov2Config",
    "Dinov2WithRegistersModel": "Dinov2WithRegistersConfig",
    "Dinov2WithRegistersForImageClassification": "Dinov2WithRegistersConfig",
    "DINOv3ViTModel": "DINOv3ViTConfig",
    "CLIPVisionModelWithProjection": "CLIPVisionConfig",
    "SiglipVisionModel": "SiglipVisionConfig",
}


@pytest.mark.parametrize("name", one_in(3, {name: name for name in SAVED}))
def test_what_torch_saves_is_what_the_package_saves(name: str, tmp_path: Path) -> None:
    config = getattr(transformers, SAVED[name])(**{**SMALL, "num_labels": 5})
    if SAVED[name] == "ViTMAEConfig":
        config.update({"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_intermediate_size": 32})
        config.update({"decoder_num_attention_heads": 2})
    torch.manual_seed(0)
    network = randomised(getattr(transformers, name)(config))
    network.save_pretrained(tmp_path / "package")
    by_torch = tmp_path / "torch"
    by_torch.mkdir()
    torch.save(network.state_dict(), by_torch / "pytorch_model.bin")
    (by_torch / "config.json").write_text((tmp_path / "package" / "config.json").read_text())
    answers = [read_checkpoint(folder).model.network(PIXELS) for folder in (tmp_path / "package", by_torch)]
    assert torch.equal(*answers)
    assert answers[0].std() > 0.01


def test_the_package_keeps_other_names_in_memory_than_in_its_files(tmp_path: Path) -> None:
    # Otherwise the test above shows nothing.
    network = transformers.ViTModel(small("vit"))
    network.save_pretrained(tmp_path)
    assert network.state_dict().keys() != load_file(tmp_path / "model.safetensors").keys()
