"""Checkpoints of families that only a package has a network for: opened by it, watched, held to its own module."""

from __future__ import annotations

import json
import pickle
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import vitviz
from tests.hub_server import HubServer
from tests.reference_packages import timm
from tests.support.example import ASSETS
from tests.support.foreign_folders import FOREIGN, write_foreign
from tests.support.long_runs import one_in
from tests.support.package_checkpoints import edit, write
from tests.support.pickles import Payload
from tests.support.reading import read_any as read
from vitviz.cli.command import main
from vitviz.errors.extras import needs
from vitviz.errors.kinds import CheckpointError, ConfigError, LimitError, UnknownFamilyError, VitvizError
from vitviz.models.watched.network import WatchedNetwork
from vitviz.models.watched.outputs import primary_output
from vitviz.weights import by_package as opening
from vitviz.weights import packages
from vitviz.weights.packages.reference import Package
from vitviz.weights.verify import PHOTO

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("kind", one_in(2, {kind: kind for kind in FOREIGN}))
def test_the_packages_model_is_what_opens(kind: str, tmp_path: Path) -> None:
    folder, module = write_foreign(kind, tmp_path)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    model = vitviz.load(folder)
    assert model.engine == "module" and model.name == "small" and model.origin is not None
    assert model.origin.folder == folder and "watched" in model.card["engine"]
    config = model.network.config
    pixels = torch.randn(2, 3, config.image_height, config.image_width)
    with torch.no_grad():
        assert isinstance(model.network, WatchedNetwork)
        assert torch.equal(model.network.returned(pixels), primary_output(module(pixels)))
    assert model.preprocessing.mean == ((0.5,) * 3 if "open_clip" in kind else (0.4, 0.5, 0.6))
    analysis = vitviz.analyze(ASSETS / PHOTO, model)
    assert analysis.rollout().values.isfinite().all()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("kind", one_in(3, {kind: kind for kind in FOREIGN}))
def test_verify_holds_it_to_its_package(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = write_foreign(kind, tmp_path)
    assert main(["verify", str(folder)]) == 0
    printed = capsys.readouterr().out
    rows = {line.split("  ")[0]: line.split()[-1] for line in printed.splitlines() if "allowed" in line}
    assert {"pixels of chelsea.jpg", "output for chelsea.jpg"} <= rows.keys() and set(rows.values()) == {"yes"}
    # Both would watch the same model.
    assert "attention, layer" not in printed and "not compared: attention weights: vitviz has no network" in printed


def test_verify_at_a_size_that_the_model_does_not_take_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = write_foreign("timm's Swin", tmp_path)
    assert main(["verify", str(folder), "--size", "64x96"]) == 2
    assert "small does not take an image of 96×64 pixels" in capsys.readouterr().err


def test_a_size_that_only_timm_s_default_for_all_models_states_is_asked_for(tmp_path: Path) -> None:
    options = {"embed_dim": 16, "stages": (1, 1, 1, 1), "num_classes": 5}
    folder = tmp_path / "small"
    module = timm.create_model("hiera_tiny_224", **options)
    timm.models.save_for_hf(module, folder, safe_serialization=True, model_args=options)
    edit(folder, lambda values: values["pretrained_cfg"].pop("input_size"))
    with pytest.raises(VitvizError, match="the module does not say its image_size; "):
        vitviz.load(folder)
    assert vitviz.load(folder, image_size=224).network.config.image_width == 224


def test_what_ignore_is_proposed_for_an_image_processor_works(tmp_path: Path) -> None:
    folder, _ = write_foreign("Swin", tmp_path)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "NewImageProcessor"}))
    with pytest.raises(CheckpointError, match=r"ignore=\['preprocessor_config.json:\*'\]"):
        vitviz.load(folder)
    model = vitviz.load(folder, ignore=["preprocessor_config.json:*"], normalisation="imagenet")
    assert model.engine == "module" and "imagenet" in model.card["preprocessing"]


def test_a_name_of_the_hub(server: HubServer, tmp_path: Path) -> None:
    folder, module = write_foreign("Swin", tmp_path)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    server.add("owner/swin", {**files, "modeling_swin.py": b"raise SystemExit"})
    model = vitviz.load("hf:owner/swin")
    asked = len(server.log)
    assert model.name == "owner/swin" and model.origin is not None and model.origin.repository == "owner/swin"
    pixels = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model.network(pixels), module(pixels).logits)
    # Analysing asks the hub for nothing.
    vitviz.analyze(ASSETS / PHOTO, model)
    assert len(server.log) == asked and not server.requests("modeling_swin.py")


def test_a_file_by_timm_s_name_of_its_architecture(tmp_path: Path) -> None:
    module = timm.create_model("test_vit_relpos").eval()
    save_file(module.state_dict(), tmp_path / "mine.safetensors")
    model = vitviz.load(tmp_path / "mine.safetensors", architecture="test_vit_relpos", normalisation="half")
    pixels = torch.randn(1, 3, 160, 160)
    with torch.no_grad():
        assert model.name == "mine" and torch.equal(model.network(pixels), module(pixels))
    assumed = vitviz.load(tmp_path / "mine.safetensors", architecture="test_vit_relpos")
    prepared, cfg = assumed.preprocessing, module.pretrained_cfg
    assert (prepared.mean, prepared.std, prepared.crop_fraction) == (cfg["mean"], cfg["std"], cfg["crop_pct"])
    assert any("timm's default for test_vit_relpos" in text for text in assumed.assumptions)


def test_what_a_file_and_those_beside_it_state_comes_before_timm_s_default(tmp_path: Path) -> None:
    module, names = timm.create_model("test_vit_relpos", num_classes=3).eval(), ("cat", "dog", "cow")
    path = tmp_path / "model.safetensors"
    save_file(module.state_dict(), path, {"class_names": json.dumps(names)})
    (tmp_path / "config.json").write_text(json.dumps({"num_classes": 3}))
    reading = read(path, architecture="test_vit_relpos")
    model, checks = reading.model, {check.fact: (check.value, check.source) for check in reading.checks}
    value, source = checks["preprocessing"]
    assert "crop to 0.95" in value and source.startswith("timm's default for test_vit_relpos")
    assert model.labels == names and model.card["labels"] == "class_names of the file"
    assert model.preprocessing.crop_fraction == module.pretrained_cfg["crop_pct"]
    processor = {"image_processor_type": "ViTImageProcessor", "image_mean": [0.1] * 3, "image_std": [0.2] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    stated = vitviz.load(path, architecture="test_vit_relpos").preprocessing
    assert (stated.mean, stated.std, stated.fit) == ((0.1,) * 3, (0.2,) * 3, "squash")


def test_sharded_weights(tmp_path: Path) -> None:
    folder, module = write_foreign("Swin", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {f"model-0000{part + 1}-of-00002.safetensors": sorted(tensors)[part::2] for part in range(2)}
    for name, keys in parts.items():
        save_file({key: tensors[key] for key in keys}, folder / name, {"format": "pt"})
    places = {key: name for name, keys in parts.items() for key in keys}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    pixels = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(vitviz.load(folder).network(pixels), module(pixels).logits)


# Which engine.


@pytest.mark.parametrize("package", ["timm", "transformers", "open_clip"])
def test_a_family_of_vitviz_s_own_opens_by_its_package_on_request(package: str, tmp_path: Path) -> None:
    folder = write(package, tmp_path)
    own, theirs = vitviz.load(folder), vitviz.load(folder, engine="module")
    assert (own.engine, theirs.engine) == ("own", "module") and own.labels == theirs.labels
    assert vitviz.load(folder, engine="own").engine == "own"
    pixels = torch.randn(1, 3, 32, 32)
    assert torch.allclose(own.network(pixels), theirs.network(pixels), rtol=0, atol=1e-5)
    ours, watched = (model.network.encode(pixels).traces[0] for model in (own, theirs))
    for layer in range(ours.layers):
        assert float((ours.weights(layer) - watched.weights(layer)).abs().max()) <= 1e-5


def test_the_own_engine_alone_refuses_what_it_has_no_network_for(tmp_path: Path) -> None:
    folder, _ = write_foreign("Swin", tmp_path)
    with pytest.raises(UnknownFamilyError, match=r"^small: this is Swin: hierarchical, windows; vitviz reads"):
        vitviz.load(folder, engine="own")


WRONG: dict[str, tuple[dict[str, Any], type[VitvizError], str]] = {
    "another engine": ({"engine": "timm"}, ConfigError, "engine 'timm': expected 'own' or 'module'"),
    "precision": ({"precision": "bfloat16"}, ConfigError, "precision 'bfloat16': small is a package's model, which .*"),
    "a fact of own networks": (
        {"engine": "module", "heads": 2},
        CheckpointError,
        "heads: of vitviz's own network alone; of one that a package opens you can pass normalisation, .*",
    ),
    "a family": (
        {"engine": "module", "family": "timm"},
        CheckpointError,
        "family: of vitviz's own network alone; .*",
    ),
    "tokens": ({"engine": "module", "prefix": ["cls"]}, ConfigError, "prefix: of a module in memory alone; .*"),
    "labels": ({"engine": "module", "labels": ["a"]}, ConfigError, r".* an output of shape \(1, 3\) for 1 labels; .*"),
    "memory": ({"max_bytes": 1000}, LimitError, ".*: its network takes [\\d,]+ bytes of memory; at most 1,000 .*"),
}


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_apply_is_one_sentence(
    arguments: dict[str, Any], error: type[VitvizError], message: str, tmp_path: Path
) -> None:
    folder, _ = write_foreign("Swin", tmp_path)
    with pytest.raises(error, match=f"^{message}$"):
        vitviz.load(folder, **arguments)


@pytest.mark.parametrize(
    ("kind", "package"), [("Swin", "transformers"), ("timm's Swin", "timm"), ("a tower of open_clip", "open_clip")]
)
def test_a_package_that_is_not_installed_is_named_with_what_installs_it(
    kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = write_foreign(kind, tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnknownFamilyError) as refused:
        vitviz.load(folder)
    sentence = str(refused.value)
    assert sentence.startswith("small: this is ") or "expected one of timm's Vision Transformers" in sentence
    assert needs("opening it by its package", package) in sentence


# Folders that do not fit.


def _refusal(folder: Path, **arguments: Any) -> str:
    started = time.process_time()
    with pytest.raises(VitvizError) as refused:
        vitviz.load(folder, **arguments)
    assert time.process_time() - started < 20
    sentence = str(refused.value)
    assert "\n" not in sentence and len(sentence) < 1500
    return sentence


def test_pickles_are_never_given_to_a_package(tmp_path: Path) -> None:
    folder, _ = write_foreign("Swin", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert "torch, which a package is not given to read; expected its weights as safetensors" in _refusal(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Payload(tmp_path / "harm")}, protocol=2))
    assert "posix.mkdir" in _refusal(folder)
    assert not (tmp_path / "harm").exists()


def test_a_package_sees_the_configuration_and_the_weights_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, module = write_foreign("Swin", tmp_path)
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (folder / name).write_bytes(pickle.dumps(Payload(tmp_path / "harm")))
    (folder / "modeling_swin.py").write_text(f"open({str(tmp_path / 'harm')!r}, 'w')")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "owner/other"}')
    seen: list[set[str]] = []
    opened = packages.PACKAGES[1]

    def load(given: Path, size: Any, ignore: Any) -> Any:
        seen.append({file.name for file in given.iterdir()})
        return opened.load(given, size, ignore)

    fields = {name: getattr(opened, name) for name in Package.__dataclass_fields__}
    monkeypatch.setattr(packages, "PACKAGES", (packages.PACKAGES[0], Package(**{**fields, "load": load})))
    pixels = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(vitviz.load(folder).network(pixels), module(pixels).logits)
    assert seen == [{"config.json", "model.safetensors"}] and not (tmp_path / "harm").exists()


CONFIGURATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no class": ({"architectures": ["Trainer"]}, "transformers 5.+ has no such model of type 'swin'"),
    "no type that there is": ({"model_type": "evil"}, "transformers 5.+ has no such model of type 'evil'"),
    "a text for a number": ({"embed_dim": "8"}, "transformers cannot open small"),
}
TIMM: dict[str, tuple[dict[str, Any], str]] = {
    "a name of the hub": ({"architecture": "hf-hub:owner/evil"}, "architecture = 'hf-hub:owner/evil': timm 1.+ has"),
    "fewer classes": ({"num_classes": 2}, "timm cannot open small .*shape in current model is"),
    "an unknown argument": ({"model_args": {"evil": 1}}, "evil"),
}
CLASSIFIER, NORM = "classifier.weight", "swin.layernorm.weight"
TENSORS: dict[str, tuple[Any, str]] = {
    "no number": (lambda tensors: tensors[NORM].fill_(float("nan")), "values that are not finite in"),
    "a tensor less": (lambda tensors: tensors.pop(NORM), "transformers finds no 'swin.layernorm.weight'"),
    "no classifier": (lambda tensors: tensors.pop(CLASSIFIER), "transformers finds no 'classifier.weight'"),
    "a tensor more": (lambda tensors: tensors.update(more=torch.ones(3)), "does not have: 'more'; ignore="),
    "another shape": (lambda tensors: tensors.update({NORM: torch.ones(3)}), "transformers cannot open small"),
}
Damage = Callable[[Path], object]


def entries_of(values: dict[str, Any]) -> Damage:
    return lambda folder: edit(folder, lambda config: config.update(values))


def tensors_of(damage: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        damage(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return change


UNFIT: dict[str, tuple[str, Damage, str]] = {
    **{name: ("Swin", entries_of(values), message) for name, (values, message) in CONFIGURATIONS.items()},
    **{name: ("timm's relative positions", entries_of(values), found) for name, (values, found) in TIMM.items()},
    **{name: ("Swin", tensors_of(damage), message) for name, (damage, message) in TENSORS.items()},
}


@pytest.mark.parametrize(("kind", "damage", "message"), UNFIT.values(), ids=UNFIT)
def test_a_folder_that_does_not_fit_is_refused(kind: str, damage: Damage, message: str, tmp_path: Path) -> None:
    folder, _ = write_foreign(kind, tmp_path)
    damage(folder)
    assert re.search(message, _refusal(folder))


def test_a_cut_file_is_refused_before_any_package_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = write_foreign("Swin", tmp_path)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    monkeypatch.setattr(opening, "import_package", lambda *_: pytest.fail("a package was imported"))
    assert "cannot be read, or is damaged" in _refusal(folder)


def test_a_module_that_cannot_be_watched_is_refused_with_both_reasons(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    model: nn.Module = timm.create_model("test_convnext", num_classes=3)
    (folder / "config.json").write_text(json.dumps({"architecture": "test_convnext", "num_classes": 3}))
    save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    sentence = _refusal(folder)
    assert "small: opened by ConvNeXt of timm" in sentence and sentence.startswith("small: ")
