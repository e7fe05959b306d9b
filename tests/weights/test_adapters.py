"""LoRA adapters of peft's: merged into their base model as peft merges them, or refused by one sentence."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import vitviz
from tests.parity.random_draws import silent
from tests.reference_packages import timm, transformers
from tests.support.checkpoints import timm_state
from tests.support.foreign_folders import write_foreign
from vitviz.cli.command import main
from vitviz.errors.kinds import CheckpointError, ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import peft

pytestmark = pytest.mark.parity

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SIZES |= {"image_size": 32, "patch_size": 8, "num_labels": 3}
PLACES = ("q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2", "projection")
# Modules in memory as version 5 of transformers calls them, and as version 4 did, whose names are those of the files.
VERSION_4 = {
    ".layers.": ".encoder.layer.",
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def randomize(module: nn.Module, among: Callable[[str], bool] = lambda name: True) -> None:
    for name, parameter in module.named_parameters():
        if among(name):
            parameter.data = 0.2 * torch.randn(parameter.shape)


def write_base(folder: Path, cls: str = "ViTForImageClassification") -> Path:
    torch.manual_seed(1)
    with silent():
        module = getattr(transformers, cls)(transformers.ViTConfig(**SIZES))
        randomize(module)
        module.save_pretrained(folder / "base")
    (folder / "base" / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "ViTImageProcessor", "image_mean": [0.4] * 3, "image_std": [0.5] * 3})
    )
    return folder / "base"


def write_adapter(folder: Path, make: Callable[[], nn.Module], **options: Any) -> nn.Module:
    """A trained-looking adapter in a folder; returns the model as peft opens and merges it."""
    torch.manual_seed(2)
    with silent(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(make(), peft.LoraConfig(**options))
        randomize(adapted, lambda name: "lora_" in name or "modules_to_save" in name)
        if options.get("bias", "none") != "none":
            randomize(adapted, lambda name: name.endswith("base_layer.bias"))
        adapted.save_pretrained(folder / "adapter")
        return peft.PeftModel.from_pretrained(make(), folder / "adapter").merge_and_unload().eval()


def opened(base: Path, cls: str = "ViTForImageClassification", **options: Any) -> nn.Module:
    with silent():
        return getattr(transformers, cls).from_pretrained(base, **options)


def same_logits(model: vitviz.Model, merged: nn.Module) -> None:
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        found, expected = model.network(pixels), merged(pixels)
    expected = getattr(expected, "logits", expected)
    assert torch.allclose(found, expected, rtol=0, atol=1e-5 * max(1.0, float(expected.abs().max())))


def draw(seed: int) -> dict[str, Any]:
    chosen = random.Random(seed)
    places = chosen.sample(PLACES, chosen.randint(1, len(PLACES)))
    options: dict[str, Any] = {
        "target_modules": places,
        "r": chosen.randint(1, 9),
        "lora_alpha": chosen.choice((1, 8, 24)),
        "use_rslora": chosen.random() < 0.5,
        "bias": chosen.choice(("none", "lora_only", "all")),
        "modules_to_save": chosen.choice((None, ["classifier"], ["layernorm", "classifier"])),
        "init_lora_weights": chosen.choice((True, False, "gaussian")),
        "fan_in_fan_out": chosen.random() < 0.2,
    }
    patterns = chosen.sample((*places, r"layers.1.*", rf"layers\.\d+\.mlp.{places[0]}", "^vit.layers.0"), 2)
    options["alpha_pattern"] = {pattern: chosen.choice((0.5, 3, 16)) for pattern in patterns}
    options["rank_pattern"] = {place: chosen.randint(1, 5) for place in places[::2]}
    return options


@pytest.mark.parametrize("seed", range(6))
def test_an_adapter_is_merged_as_peft_merges_it(seed: int, tmp_path: Path) -> None:
    base = write_base(tmp_path)
    merged = write_adapter(tmp_path, lambda: opened(base), **draw(seed))
    model = vitviz.load(tmp_path / "adapter")
    assert model.engine == "own" and model.name == "adapter" and "merged into" in model.card["adapter"]
    assert model.preprocessing.mean == (0.4,) * 3
    same_logits(model, merged)
    same_logits(vitviz.load(tmp_path / "adapter" / "adapter_model.safetensors", base=base), merged)


def test_a_new_classifier_on_the_checkpoint_of_an_encoder(tmp_path: Path) -> None:
    base = write_base(tmp_path, "ViTModel")
    options = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["classifier"]}
    merged = write_adapter(tmp_path, lambda: opened(base, num_labels=5), **options)
    model = vitviz.load(tmp_path / "adapter")
    assert model.labels == tuple(f"class {index}" for index in range(5))
    same_logits(model, merged)


def test_a_new_classifier_takes_the_place_of_a_projection(tmp_path: Path) -> None:
    torch.manual_seed(1)
    vision = {key: value for key, value in SIZES.items() if key != "num_labels"}
    text = {key: vision[key] for key in vision if "size" not in key or key == "hidden_size"} | {"vocab_size": 50}
    # As wide as its tokens: nothing but the model says that the classifier does not read it.
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    with silent():
        module = transformers.CLIPModel(config)
        randomize(module)
        module.save_pretrained(tmp_path / "base")
    options = {"target_modules": ["q_proj", "fc1"], "modules_to_save": ["classifier"]}
    cls = "CLIPForImageClassification"
    merged = write_adapter(tmp_path, lambda: opened(tmp_path / "base", cls, num_labels=5), **options)
    same_logits(vitviz.load(tmp_path / "adapter", normalisation="clip"), merged)


def test_an_encoder_s_adapter_on_a_whole_checkpoint(tmp_path: Path) -> None:
    base = write_base(tmp_path)
    merged = write_adapter(
        tmp_path, lambda: opened(base, "ViTModel", add_pooling_layer=False), target_modules=["q_proj", "fc2"]
    )
    model = vitviz.load(tmp_path / "adapter")
    assert model.labels == ()
    pixels = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        expected = merged(pixels).last_hidden_state[:, 0]
        assert torch.allclose(model.network.output(pixels, "features"), expected, rtol=0, atol=1e-5)


def test_the_names_that_modules_had_in_version_4(tmp_path: Path) -> None:
    base = write_base(tmp_path)
    merged = write_adapter(
        tmp_path, lambda: opened(base), target_modules=["q_proj", "fc1", "o_proj", "fc2"], bias="lora_only"
    )
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(weights)
    for one, other in VERSION_4.items():
        tensors = {key.replace(one, other): tensor for key, tensor in tensors.items()}
    save_file(tensors, weights)
    same_logits(vitviz.load(tmp_path / "adapter"), merged)


def test_a_model_of_timm_s_with_its_base_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = timm.create_model("vit_tiny_patch16_224", depth=2, embed_dim=16, num_heads=2, img_size=32, patch_size=8)
    randomize(module)
    save_file(module.state_dict(), tmp_path / "base.safetensors")
    module.reset_classifier(4)
    merged = write_adapter(tmp_path, lambda: deepcopy(module), target_modules=["qkv", "proj"], modules_to_save=["head"])
    facts = {"heads": 2, "pooling": "cls", "normalisation": "half", "activation": "gelu"}
    facts |= {"final_norm": "before pooling", "norm_epsilon": 1e-6, "position_rule": "bicubic antialiased"}
    with pytest.raises(CheckpointError, match=r"^adapter: its adapter_config.json names no base model; .* base=…"):
        vitviz.load(tmp_path / "adapter", **facts)
    same_logits(vitviz.load(tmp_path / "adapter", base=tmp_path / "base.safetensors", **facts), merged)
    said = [f"--{fact}={value}" for fact, value in {**facts, "base": tmp_path / "base.safetensors"}.items()]
    assert main(["inspect", str(tmp_path / "adapter"), *said]) == 0
    assert "tensors of LoRA" in capsys.readouterr().out


def test_a_model_that_its_package_opens(tmp_path: Path) -> None:
    folder, _ = write_foreign("Swin", tmp_path)
    module = opened(folder, "SwinForImageClassification", num_labels=5, ignore_mismatched_sizes=True)
    merged = write_adapter(
        tmp_path, lambda: deepcopy(module), target_modules=["q_proj", "fc1"], modules_to_save=["classifier"]
    )
    model = vitviz.load(tmp_path / "adapter")
    assert model.engine == "module" and len(model.labels) == 5
    same_logits(model, merged)


# What is refused.


def broken(change: dict[str, Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        config = folder / "adapter_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), **change}))

    return write


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        found = load_file(folder / "adapter_model.safetensors")
        change(found)
        save_file(found, folder / "adapter_model.safetensors")

    return write


def as_pickle(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def beside_a_model(folder: Path) -> None:
    save_file({"a": torch.ones(1)}, folder / "model.safetensors")


FIRST = "base_model.model.vit.layers.0.attention.q_proj.lora_A.weight"
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "IA3": (broken({"peft_type": "IA3"}), "peft_type = 'IA3' in its adapter_config.json; expected 'LORA'"),
    "no type": (broken({"peft_type": None}), "peft_type = None"),
    "DoRA": (broken({"use_dora": True}), "use_dora = True in its adapter_config.json; expected plain LoRA"),
    "biases of LoRA": (broken({"lora_bias": True}), "lora_bias = True"),
    "an entry of the future": (broken({"use_magic": 1}), "use_magic = 1"),
    "PiSSA": (broken({"init_lora_weights": "pissa"}), "init_lora_weights = 'pissa'.*leave the base model as it is"),
    "an alpha that is no number": (broken({"lora_alpha": "8"}), "lora_alpha = '8'"),
    "an endless alpha": (broken({"lora_alpha": float("inf")}), "lora_alpha = inf"),
    "a rank of 0": (broken({"r": 0}), "r = 0 in its"),
    "another rank": (broken({"r": 7}), "of rank 4; expected the ranks of its adapter_config.json, 7"),
    "a slow pattern": (broken({"alpha_pattern": {"(a+)+": 1}}), "alpha_pattern = "),
    "modules as one text": (broken({"modules_to_save": "head"}), "modules_to_save = 'head'"),
    "a base that is gone": (broken({"base_model_name_or_path": "/no/such"}), "names '/no/such', which is not here"),
    "a base of vitviz's own": (
        broken({"base_model_name_or_path": str(Path(vitviz.__file__).parents[1] / "checkpoints")}),
        "an adapter of .* its keys are",
    ),
    "a pickle": (as_pickle, "an adapter in adapter_model.bin; expected adapter_model.safetensors"),
    "a model beside it": (beside_a_model, "an adapter beside model.safetensors, .*; expected base=…"),
    "another architecture": (
        tensors(lambda found: found.update({FIRST.replace(".vit.", ".bert."): found.pop(FIRST)})),
        "lora_A of 'bert.layers.0.attention.q_proj' alone|lora_B of .* alone",
    ),
    "half of a pair": (tensors(lambda found: found.pop(FIRST)), "lora_B of 'vit.layers.0.attention.q_proj' alone"),
    "another width": (
        tensors(lambda found: found.update({FIRST: torch.ones(4, 8)})),
        r"lora_A \(4, 8\) and lora_B \(16, 4\) for .* has the shape \(16, 16\) in base",
    ),
    "a magnitude": (
        tensors(lambda found: found.update({FIRST.replace("lora_A.weight", "lora_magnitude_vector"): torch.ones(16)})),
        "the keys '.*lora_magnitude_vector'; expected lora_A.weight and lora_B.weight alone",
    ),
    "a key of nowhere": (
        tensors(lambda found: found.update({"base_model.model.more.weight": torch.ones(2)})),
        "an adapter of 'more.weight'|.*'more.weight'",
    ),
    "a key without peft's beginning": (
        tensors(lambda found: found.update({"head.weight": torch.ones(2)})),
        "the key 'head.weight'; expected keys that begin with 'base_model.model.'",
    ),
    "half of a module": (
        tensors(lambda found: found.pop("base_model.model.classifier.bias")),
        "modules_to_save without 'classifier.bias'; expected all tensors of these modules",
    ),
    "no number": (
        tensors(lambda found: found.update({FIRST: torch.full((4, 16), float("nan"))})),
        "values that are not finite",
    ),
}


@pytest.mark.parametrize(("change", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_understood_is_one_sentence(change: Callable[[Path], None], sentence: str, tmp_path: Path) -> None:
    base = write_base(tmp_path)
    write_adapter(tmp_path, lambda: opened(base), target_modules=["q_proj"], r=4, modules_to_save=["classifier"])
    change(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=sentence) as caught:
        vitviz.load(tmp_path / "adapter")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 900


@pytest.mark.parametrize("kind", ["Dinov2Model", "SwinModel"])
def test_an_adapter_of_another_architecture(kind: str, tmp_path: Path) -> None:
    base = write_base(tmp_path)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32}
    config = (
        transformers.Dinov2Config(**small)
        if kind == "Dinov2Model"
        else transformers.SwinConfig(embed_dim=8, depths=[1], num_heads=[2], image_size=32, window_size=4)
    )
    write_adapter(tmp_path, lambda: getattr(transformers, kind)(config), target_modules=["v_proj", "fc1"])
    with pytest.raises(CheckpointError, match=r"^adapter: .* expected the base model that it was trained with$"):
        vitviz.load(tmp_path / "adapter", base=base)


def test_a_base_is_of_an_adapter_alone(tmp_path: Path) -> None:
    base = write_base(tmp_path)
    with pytest.raises(ConfigError, match=r"^base = .*: of an adapter alone"):
        vitviz.load(base, base=base)
    with pytest.raises(ConfigError, match=r"^base: a module says itself"):
        vitviz.load(opened(base).eval(), base=base)
    write_adapter(tmp_path, lambda: opened(base), target_modules=["q_proj"])
    with pytest.raises(CheckpointError, match="nothing to verify against"):
        vitviz.load(tmp_path / "adapter", verify=True)


@pytest.mark.parametrize(
    "key", ["blocks.0.adaptmlp.down_proj.weight", "blocks.0.adapter.0.weight", "prompt_embeddings"]
)
def test_layers_that_tuning_added_are_not_proposed_to_be_left_out(key: str, tmp_path: Path) -> None:
    torch.save({**timm_state(), key: torch.ones(2, 192)}, tmp_path / "best.pth")
    with pytest.raises(CheckpointError, match=r"layers or prompts that tuning added; .*vitviz\.load\(module\)$"):
        vitviz.load(tmp_path / "best.pth", heads=3)


@pytest.mark.parametrize("is_whole", [True, False], ids=["peft's model", "the model inside"])
def test_a_state_dict_with_adapters_in_it_is_refused_with_the_line_that_merges(is_whole: bool, tmp_path: Path) -> None:
    base = transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES)).eval()
    with silent(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["classifier"]))
    randomize(adapted)
    model, pixels = adapted.eval(), torch.randn(1, 3, 32, 32)
    torch.save((model if is_whole else model.get_base_model()).state_dict(), tmp_path / "best.pth")
    facts: dict[str, Any] = {"heads": 2, "activation": "gelu", "norm_epsilon": 1e-12, "pooling": "cls"}
    with pytest.raises(CheckpointError, match=r"base_layer.*model\.merge_and_unload\(\)\.state_dict\(\)"):
        vitviz.load(tmp_path / "best.pth", **facts)
    expected = model(pixel_values=pixels).logits
    torch.save(model.merge_and_unload().state_dict(), tmp_path / "merged.pth")
    merged = vitviz.load(tmp_path / "merged.pth", **facts)
    torch.testing.assert_close(merged.network(pixels), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "names",
    [
        {"qkv.lora_A": "qkv.lora_A", "qkv.weight": "qkv.weight"},
        {"qkv.lora_A": "qkv.parametrizations.weight.0.lora_A", "qkv.weight": "qkv.parametrizations.weight.original"},
    ],
    ids=["loralib", "parametrisation"],
)
def test_adapters_of_other_code_are_refused_too(names: dict[str, str], tmp_path: Path) -> None:
    state = {**timm_state(), "blocks.0.attn.qkv.lora_A": torch.ones(2, 192)}
    renamed = {
        next((key.replace(old, new) for old, new in names.items() if key.endswith(old)), key): tensor
        for key, tensor in state.items()
    }
    torch.save(renamed, tmp_path / "best.pth")
    with pytest.raises(CheckpointError, match=r"a network with adapters that are not merged.*merge_and_unload"):
        vitviz.load(tmp_path / "best.pth", heads=3)
