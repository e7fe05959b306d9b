"""Folders and names that timm, transformers and open_clip open: their own module is watched, and nothing else runs."""

from __future__ import annotations

import json
import pickle
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import vitviz
from tests.hub_server import HubServer
from tests.parity.case import randomised
from tests.reference_packages import open_clip, timm, transformers
from tests.support.example import ASSETS
from tests.support.foreign_folders import FOREIGN, write_foreign
from tests.support.package_checkpoints import edit, write
from tests.support.pickles import Payload
from vitviz.errors.extras import needs
from vitviz.errors.kinds import CheckpointError, ConfigError, UnknownFamilyError, VitvizError
from vitviz.models.watched.outputs import primary_output
from vitviz.models.watched.watched_network import WatchedNetwork
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.packages import build_from_folder
from vitviz.weights.recognize import OTHERS
from vitviz.weights.verify import PHOTO

pytestmark = pytest.mark.parity
WEIGHTS = "model.safetensors"
RELATIVE = "test_vit_relpos"
TEXT = {"context_length": 8, "vocab_size": 20, "width": 32, "heads": 2, "layers": 1}


def check_output(model: vitviz.Model, module: Callable[[torch.Tensor], Any]) -> None:
    """The very numbers of a module."""
    config = model.network.config
    pixels = torch.randn(2, 3, config.image_height, config.image_width)
    with torch.no_grad():
        assert isinstance(model.network, WatchedNetwork)
        with model.network.running(pixels) as inputs:
            assert torch.equal(model.network.run(inputs), primary_output(module(pixels)))


# What opens.


@pytest.mark.parametrize("kind", FOREIGN)
def test_the_model_of_a_package_is_what_opens_and_nothing_is_left_changed(kind: str, tmp_path: Path) -> None:
    folder, module = write_foreign(kind, tmp_path)

    def state() -> list[Any]:
        numbers = torch.random.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()
        return [*numbers, torch.get_default_dtype(), {file.name: file.read_bytes() for file in folder.iterdir()}]

    before = state()
    model = vitviz.load(folder)
    assert state() == before
    assert model.engine == "module" and model.name == "small" and "watched" in model.card["engine"]
    assert model.origin is not None and model.origin.folder == folder
    check_output(model, module)
    assert model.preprocessing.mean == ((0.5,) * 3 if "open_clip" in kind else (0.4, 0.5, 0.6))
    assert vitviz.analyze(ASSETS / PHOTO, model).rollout().values.isfinite().all()


def test_a_name_of_the_hub(server: HubServer, tmp_path: Path) -> None:
    folder, module = write_foreign("Swin", tmp_path)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    server.add("owner/swin", {**files, "modeling_swin.py": b"raise SystemExit"})
    model = vitviz.load("hf:owner/swin")
    asked = len(server.log)
    assert model.name == "owner/swin" and model.origin is not None and model.origin.repository == "owner/swin"
    check_output(model, lambda pixels: module(pixels).logits)
    # Analysing asks the hub for nothing.
    vitviz.analyze(ASSETS / PHOTO, model)
    assert len(server.log) == asked and not server.requests("modeling_swin.py")


@pytest.mark.parametrize("kind", ["shards", "a file of torch"])
def test_weights_in_shards_and_as_torch_saves_them(kind: str, tmp_path: Path) -> None:
    folder, module = write_foreign("Swin", tmp_path)
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    if kind == "shards":
        parts = {f"model-0000{part + 1}-of-00002.safetensors": sorted(tensors)[part::2] for part in range(2)}
        for name, keys in parts.items():
            save_file({key: tensors[key] for key in keys}, folder / name, {"format": "pt"})
        places = {key: name for name, keys in parts.items() for key in keys}
        (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    else:
        torch.save(tensors, folder / "pytorch_model.bin")
    check_output(vitviz.load(folder), lambda pixels: module(pixels).logits)


def test_half_precision_is_computed_in_single(tmp_path: Path) -> None:
    folder, module = write_foreign("Swin", tmp_path)
    edit(folder, lambda config: config.update(dtype="bfloat16"))
    save_file({key: each.bfloat16() for key, each in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS)
    rounded = {
        key: each.bfloat16().float() if each.is_floating_point() else each for key, each in module.state_dict().items()
    }
    module.load_state_dict(rounded)
    check_output(vitviz.load(folder), lambda pixels: module(pixels).logits)


@pytest.mark.parametrize("package", ["timm", "transformers"])
def test_a_layout_of_vitviz_s_own_opens_by_its_package_on_request(package: str, tmp_path: Path) -> None:
    folder = write(package, tmp_path)
    own, theirs = vitviz.load(folder), vitviz.load(folder, engine="module")
    assert (own.engine, theirs.engine) == ("own", "module") and own.labels == theirs.labels
    pixels = torch.randn(1, 3, 32, 32)
    assert torch.allclose(own.network(pixels), theirs.network(pixels), rtol=0, atol=1e-5)
    ours, watched = (model.network.encode(pixels).traces[0] for model in (own, theirs))
    for layer in range(ours.layers):
        assert float((ours.weights(layer) - watched.weights(layer)).abs().max()) <= 1e-5


def test_a_vit_beside_another_processor_is_opened_by_its_package(tmp_path: Path) -> None:
    folder = write("transformers", tmp_path)
    edit(folder, lambda values: values.update(image_processor_type="DeiTImageProcessor"), "preprocessor_config.json")
    assert vitviz.load(folder).engine == "module"
    with pytest.raises(UnknownFamilyError, match=r"'DeiTImageProcessor': expected ViT's own; .* its package reads"):
        vitviz.load(folder, engine="own")


def test_the_wrapper_of_transformers_around_timm_is_timm_s_model(tmp_path: Path) -> None:
    cfg = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], "input_size": [3, 64, 64], "interpolation": "bilinear"}
    arguments = {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 4}
    names = {0: "cat", 1: "dog", 2: "bird"}
    config = transformers.TimmWrapperConfig(
        architecture="vit_tiny_patch16_224", model_args=arguments, pretrained_cfg=cfg, id2label=names
    )
    module = randomised(transformers.TimmWrapperForImageClassification(config))
    module.save_pretrained(tmp_path)
    model = vitviz.load(tmp_path)
    assert (model.preprocessing.mean, model.preprocessing.interpolation) == ((0.4, 0.5, 0.6), "bilinear")
    check_output(model, lambda pixels: module(pixels).logits)


def test_the_encoder_of_a_captioner_is_opened(tmp_path: Path) -> None:
    sizes = {"n_embd": 24, "n_layer": 1, "n_head": 2, "vocab_size": 50, "n_positions": 20}
    decoder = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, add_cross_attention=True, is_decoder=True))
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    encoder = transformers.Dinov2Model(transformers.Dinov2Config(image_size=32, patch_size=8, **small))
    whole = randomised(transformers.VisionEncoderDecoderModel(encoder=encoder, decoder=decoder))
    whole.save_pretrained(tmp_path)
    model = vitviz.load(tmp_path, normalisation="half")
    assert model.engine == "module"
    check_output(model, lambda pixels: whole.encoder(pixel_values=pixels).pooler_output)


# By a name of timm's or open_clip's.


def test_a_name_of_timm_s_opens_its_published_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    create, modules = timm.create_model, []

    def published(name: str, pretrained: bool, **options: Any) -> nn.Module:
        assert pretrained
        modules.append(randomised(create(name, **options)))
        return modules[0]

    monkeypatch.setattr(timm, "create_model", published)
    model = vitviz.load(f"timm:{RELATIVE}")
    assert model.name == f"timm:{RELATIVE}" and model.preprocessing.crop_fraction == 0.95
    check_output(model, modules[0])
    with pytest.raises(CheckpointError, match=r"^heads: of vitviz's own network alone; "):
        vitviz.load(f"timm:{RELATIVE}", heads=2)


def test_a_name_of_open_clip_s_needs_that_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    vision = {"image_size": 32, "patch_size": 16, "width": 64, "layers": 1, "head_width": 64}
    module = randomised(open_clip.CLIP(24, vision, TEXT))
    asked = []
    monkeypatch.setattr(
        open_clip, "create_model", lambda name, **options: asked.append((name, options["pretrained"])) or module
    )
    model = vitviz.load("open_clip:ViT-B-32/laion2b_s34b_b79k", normalisation="clip")
    assert asked == [("ViT-B-32", "laion2b_s34b_b79k")] and model.reads_text
    check_output(model, module.visual)
    with pytest.raises(CheckpointError, match=r"^open_clip:ViT-B-32: expected the name of its weights, too, such as"):
        vitviz.load("open_clip:ViT-B-32")


NAMES = {
    "timm:vit_smal_patch16_dinov3.tag": r".*: timm \S+ has no such model; did you mean 'vit_small_patch16_dinov3'\?",
    "open_clip:no-such-model/laion2b": r"open_clip: opening no.such.model.*: RuntimeError: .*",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_a_package_does_not_have_is_one_sentence(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"^{NAMES[name]}$") as refused:
        vitviz.load(name)
    assert "\n" not in str(refused.value)


# A bare file, by timm's name of its architecture.


def test_a_bare_file_of_timm_s_has_any_classes_and_what_it_says_of_them(tmp_path: Path) -> None:
    module, names = randomised(timm.create_model(RELATIVE, num_classes=3)), ("cat", "dog", "cow")
    save_file(module.state_dict(), tmp_path / "mine.safetensors", {"class_names": json.dumps(names)})
    model = vitviz.load(tmp_path / "mine.safetensors", architecture=RELATIVE)
    check_output(model, module)
    assert (model.name, model.labels, model.engine) == ("mine", names, "module")
    prepared, cfg = model.preprocessing, module.pretrained_cfg
    assert (prepared.mean, prepared.std, prepared.crop_fraction) == (cfg["mean"], cfg["std"], cfg["crop_pct"])
    assert any("only the package's default states mean, std" in text for text in model.assumptions)
    stated = vitviz.load(tmp_path / "mine.safetensors", architecture=RELATIVE, normalisation="clip").preprocessing
    assert stated.mean != prepared.mean and stated.crop_fraction == prepared.crop_fraction


def test_a_bare_file_of_lightning_opens_by_timm_s_name(tmp_path: Path) -> None:
    module = timm.create_model("test_vit3", num_classes=5).eval()
    torch.save(
        {"state_dict": {f"model.{key}": each for key, each in module.state_dict().items()}}, tmp_path / "my.ckpt"
    )
    network = vitviz.load(tmp_path / "my.ckpt", architecture="test_vit3").network
    assert torch.equal(network(network.noise()), module(network.noise()))


def test_a_bare_file_of_other_patches_than_the_name_s_is_not_resized(tmp_path: Path) -> None:
    state = timm.create_model("test_vit3").state_dict()
    state["patch_embed.proj.weight"] = torch.ones(*state["patch_embed.proj.weight"].shape[:2], 8, 8)
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(CheckpointError, match=r"patches of \(16, 16\) pixels, and those of the file are others"):
        vitviz.load(tmp_path / "mine.pth", architecture="test_vit3")


def test_a_layout_that_vitviz_has_no_network_for_is_refused_with_what_opens_it(tmp_path: Path) -> None:
    for part, (kind, name) in OTHERS.items():
        torch.save({f"{part}weight": torch.ones(2, 2)}, tmp_path / "other.pth")
        save_file({f"{part}weight": torch.ones(2, 2)}, tmp_path / "other.safetensors")
        with pytest.raises(
            UnknownFamilyError, match=r"load_state_dict\(safetensors\.torch\.load_file\('other\.safetens"
        ):
            vitviz.load(tmp_path / "other.safetensors")
        with pytest.raises(UnknownFamilyError) as refused:
            vitviz.load(tmp_path / "other.pth")
        sentence = str(refused.value)
        assert sentence.startswith(f"other.pth: no layout that vitviz has a network for: the keys of {kind}; expected ")
        assert "module.load_state_dict(torch.load('other.pth')); vitviz.load(module.eval(), preprocess" in sentence
        assert (f"architecture={name!r}" if name else "architecture") in sentence or name is None
        assert name is None or timm.get_pretrained_cfg(name, allow_unregistered=False) is not None


# What does not fit.

WRONG: dict[str, tuple[dict[str, Any], type[VitvizError], str]] = {
    "another engine": ({"engine": "timm"}, ConfigError, "engine 'timm': expected 'own' or 'module'"),
    "its own engine": ({"engine": "own"}, UnknownFamilyError, "small: model_type 'swin' in its config.json: vitviz .*"),
    "precision": ({"precision": "bfloat16"}, ConfigError, "precision 'bfloat16': small is a package's model, which .*"),
    "a fact of own networks": (
        {"engine": "module", "heads": 2},
        CheckpointError,
        "heads: of vitviz's own network alone; of one that a package opens you can pass normalisation, .*",
    ),
    "a family": ({"engine": "module", "family": "timm"}, CheckpointError, "family: of vitviz's own network alone; .*"),
    "tokens": ({"engine": "module", "prefix": ["cls"]}, ConfigError, "prefix: of a module in memory alone; .*"),
    "labels": ({"engine": "module", "labels": ["a"]}, ConfigError, r".* an output of shape \(1, 3\) for 1 labels; .*"),
}


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_apply_is_one_sentence(
    arguments: dict[str, Any], error: type[VitvizError], message: str, tmp_path: Path
) -> None:
    folder, _ = write_foreign("Swin", tmp_path)
    with pytest.raises(error, match=f"^{message}$"):
        vitviz.load(folder, **arguments)


PACKAGES = {"Swin": "transformers", "timm's relative positions": "timm", "a tower of open_clip": "open_clip"}


@pytest.mark.parametrize("kind", PACKAGES)
def test_a_package_that_is_not_installed_is_named_with_what_installs_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = write_foreign(kind, tmp_path)
    monkeypatch.setitem(sys.modules, PACKAGES[kind], None)
    with pytest.raises(CheckpointError) as refused:
        vitviz.load(folder)
    assert str(refused.value) == needs("opening small", PACKAGES[kind])


Damage = Callable[[Path], object]


def entries(**values: Any) -> Damage:
    return lambda folder: edit(folder, lambda config: config.update(values))


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        state = load_file(folder / WEIGHTS)
        change(state)
        save_file(state, folder / WEIGHTS, {"format": "pt"})

    return damage


NORM = "swin.layernorm.weight"
TIMM = "timm's relative positions"
UNFIT: dict[str, tuple[str, Damage, str]] = {
    "no class": ("Swin", entries(architectures=["Trainer"]), "transformers 5.+ has no such model of type 'swin'"),
    "no type": ("Swin", entries(model_type="evil"), "transformers 5.+ has no such model of type 'evil'"),
    "a text for a number": ("Swin", entries(embed_dim="8"), "transformers: opening small: "),
    "a name of the hub": (TIMM, entries(architecture="hf-hub:owner/evil"), "timm: opening small: "),
    "fewer classes": (TIMM, entries(num_classes=2), "3 classes in model_args, 2 in the rest of config.json"),
    "an unknown argument": (TIMM, entries(model_args={"evil": 1}), "timm: opening small: .*evil"),
    "no number": ("Swin", tensors(lambda state: state[NORM].fill_(float("nan"))), "has NaN"),
    "a tensor less": ("Swin", tensors(lambda state: state.pop(NORM)), "transformers finds no 'swin.layernorm.weight'"),
    "no head": ("Swin", tensors(lambda state: state.pop("classifier.weight")), "finds no 'classifier.weight'"),
    "a tensor more": (
        "Swin",
        tensors(lambda state: state.update(more=torch.ones(3))),
        "does not have: 'more'; ignore=",
    ),
    "another shape": (
        "Swin",
        tensors(lambda state: state.update({NORM: torch.ones(3)})),
        "transformers: opening small",
    ),
    "a cut file": (
        "Swin",
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:9999]),
        "cannot be read, or is damaged",
    ),
}


@pytest.mark.parametrize(("kind", "damage", "message"), UNFIT.values(), ids=UNFIT)
def test_a_folder_that_does_not_fit_is_refused_in_one_sentence(
    kind: str, damage: Damage, message: str, tmp_path: Path
) -> None:
    folder, _ = write_foreign(kind, tmp_path)
    if message.startswith("3 classes"):
        edit(folder, lambda config: config.update(model_args={"num_classes": 3}))
    damage(folder)
    with pytest.raises(VitvizError) as refused:
        vitviz.load(folder)
    sentence = str(refused.value)
    assert re.search(message, sentence) and "\n" not in sentence and len(sentence) < 1500


def test_keys_that_do_not_matter_are_left_out_of_transformers_model(tmp_path: Path) -> None:
    folder, module = write_foreign("Swin", tmp_path)
    tensors(lambda state: state.update({"more.weight": torch.ones(3)}))(folder)
    check_output(vitviz.load(folder, ignore=["more.*"]), lambda pixels: module(pixels).logits)


def test_a_file_is_not_opened_in_place_of_another_one(tmp_path: Path) -> None:
    folder, module = write_foreign("Swin", tmp_path)
    torch.save({key: 2 * each for key, each in load_file(folder / WEIGHTS).items()}, folder / "pytorch_model.bin")
    check_output(vitviz.load(folder / WEIGHTS), lambda pixels: module(pixels).logits)
    with pytest.raises(CheckpointError, match=r"would read model\.safetensors in this one; expected this file alone"):
        vitviz.load(folder / "pytorch_model.bin")


def test_a_module_that_cannot_be_watched_is_refused_by_name(tmp_path: Path) -> None:
    model: nn.Module = timm.create_model("test_convnext", num_classes=3)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "test_convnext", "num_classes": 3}))
    save_file(model.state_dict(), tmp_path / WEIGHTS, {"format": "pt"})
    with pytest.raises(VitvizError, match=r"opened by ConvNeXt of timm \S+: .*no attention"):
        vitviz.load(tmp_path)


# Nothing of a folder runs.

PICKLES = {
    "Swin": (WEIGHTS, "pytorch_model.bin"),
    "timm's relative positions": (WEIGHTS, "pytorch_model.bin"),
    "a tower of open_clip": ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
}


@pytest.mark.parametrize("kind", PICKLES)
def test_a_pickle_with_code_is_refused_and_nothing_of_it_runs(kind: str, tmp_path: Path) -> None:
    folder, _ = write_foreign(kind, tmp_path)
    safe, pickled = PICKLES[kind]
    state = load_file(folder / safe)
    (folder / safe).unlink()
    for engine in (None, "module"):
        torch.save({**state, "more": Payload(tmp_path / "ran")}, folder / pickled)
        with pytest.raises(CheckpointError, match=r"posix\.mkdir") as refused:
            vitviz.load(folder, engine=engine)
        assert "\n" not in str(refused.value)
        # By the package itself.
        with pytest.raises(CheckpointError, match=f"^{PACKAGES[kind]}: opening small: "):
            build_from_folder(Beside.beside(folder / pickled), folder)
    assert not (tmp_path / "ran").exists()


def test_code_and_other_files_of_a_folder_are_not_run(tmp_path: Path) -> None:
    folder, module = write_foreign("Swin", tmp_path)
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    for name in ("training_args.bin", "optimizer.pt"):
        (folder / name).write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    code = {name: "mine.Mine" for name in ("AutoModel", "AutoConfig", "AutoImageProcessor", "AutoTokenizer")}
    for file in ("config.json", "preprocessor_config.json"):
        edit(folder, lambda values: values.update(auto_map=code), file)
    check_output(vitviz.load(folder), lambda pixels: module(pixels).logits)
    edit(folder, lambda values: values.pop("architectures"))
    assert vitviz.load(folder, ignore=["classifier.*"]).card["watched from"].endswith("SwinModel")
    assert not (tmp_path / "ran").exists()
