"""A module that is no plain Vision Transformer is called by its name."""

from __future__ import annotations

import pytest
import torch

import vitviz
from tests.parity.case import randomised
from tests.reference_packages import timm, transformers
from tests.support.long_runs import one_in
from vitviz.errors.kinds import VitvizError
from vitviz.weights.architectures import architecture_of_module

pytestmark = pytest.mark.parity
# Names of timm, and how vitviz calls what they are.
NAMES = {
    "swin_tiny_patch4_window7_224": "Swin",
    "swinv2_tiny_window8_256": "Swin V2",
    "hiera_tiny_224": "Hiera",
    "sam2_hiera_tiny": "SAM 2's Hiera",
    "pit_ti_224": "PiT",
    "nest_tiny": "NesT",
    "levit_128s": "LeViT, TinyViT or EfficientFormer",
    "tiny_vit_5m_224": "LeViT, TinyViT or EfficientFormer",
    "visformer_tiny": "Visformer",
    "vitamin_small_224": "ViTamin",
    "cait_xxs24_224": "CaiT",
    "convit_tiny": "ConViT",
    "crossvit_9_240": "CrossViT",
    "coat_lite_tiny": "CoaT",
    "tnt_s_patch16_224": "TNT",
    "twins_svt_small": "PVT, SegFormer or Twins",
    "pvt_v2_b0": "PVT, SegFormer or Twins",
    "volo_d1_224": "VOLO",
    "mvitv2_tiny": "MViT",
    "davit_tiny": "DaViT",
    "gcvit_xxtiny": "GCViT",
    "xcit_nano_12_p16_224": "XCiT",
    "beit_base_patch16_224": "BEiT",
    "samvit_base_patch16": "SAM or MViT",
    "vit_small_r26_s32_224": "a hybrid of ResNet and ViT",
    "naflexvit_base_patch16_gap": "NaFlexViT",
    "convnext_atto": "a ConvNeXt",
    "resnet18": "a ResNet",
    "efficientnet_b0": "an EfficientNet or MobileNet",
    "mixer_b16_224": "MLP-Mixer",
    "focalnet_tiny_srf": "FocalNet",
}


@pytest.mark.parametrize("name", one_in(6, {name: name for name in NAMES}))
def test_a_module_is_known_by_the_file_of_its_class(name: str) -> None:
    with torch.device("meta"):
        found = architecture_of_module(timm.create_model(name, pretrained=False))
    assert found is not None and found.startswith(f"{NAMES[name]}: ")


MODULES = {
    "cait_xxs24_224": ({"depth": 1, "embed_dim": 32, "img_size": 32}, "CaiT: talking heads"),
    "convit_tiny": ({"depth": 2, "embed_dim": 8, "img_size": 32}, "ConViT: gates"),
    "xcit_nano_12_p16_224": ({"depth": 1, "img_size": 32}, "XCiT: attention between channels"),
    "crossvit_9_240": ({}, "CrossViT: two branches"),
}


@pytest.mark.parametrize("name", one_in(2, {name: name for name in MODULES}))
def test_a_module_is_refused_by_the_name_of_its_architecture(name: str) -> None:
    options, sentence = MODULES[name]
    module = randomised(timm.create_model(name, pretrained=False, num_classes=3, **options))
    with pytest.raises(VitvizError) as refused:
        vitviz.load(module, labels=["a", "b", "c"])
    assert str(refused.value).startswith(f"{name} is {sentence}") and "\n" not in str(refused.value)


def test_a_tower_of_tiles_is_refused_by_its_name() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_global_layers": 1, "intermediate_size": 32}
    config = transformers.models.mllama.MllamaVisionConfig(**sizes, attention_heads=2, image_size=28)
    with pytest.raises(VitvizError, match="MllamaVisionModel is Mllama's tower: four tiles to a picture"):
        vitviz.load(randomised(transformers.MllamaVisionModel(config)), normalisation="clip")


class Subclass(transformers.SwinForImageClassification):  # type: ignore[misc]
    """A class of one's own, made of another package's."""


def test_a_class_of_one_s_own_is_known_by_what_it_inherits_from() -> None:
    with torch.device("meta"):
        module = Subclass(transformers.SwinConfig(depths=[1], num_heads=[2], embed_dim=8))
    found = architecture_of_module(module)
    assert found is not None and found.startswith("Swin: ")
    assert architecture_of_module(torch.nn.Linear(2, 2)) is None
