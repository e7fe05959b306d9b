"""Folders of transformers around another network: its wrapper of timm's models, and encoders before a decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import vitviz
from tests.parity.case import randomised
from tests.reference_packages import transformers
from tests.support.reading import read_any as read

pytestmark = pytest.mark.parity
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
PRETRAINED = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], "input_size": [3, 64, 64], "interpolation": "bilinear"}


def _save_wrapper(folder: Path, architecture: str, **arguments: Any) -> Any:
    config = transformers.TimmWrapperConfig(
        architecture=architecture,
        model_args={"img_size": 64, **arguments},
        pretrained_cfg=PRETRAINED,
        id2label={0: "cat", 1: "dog", 2: "bird"},
    )
    module = randomised(transformers.TimmWrapperForImageClassification(config))
    module.save_pretrained(folder)
    return module


@pytest.mark.parametrize(
    ("architecture", "arguments", "engine"),
    [
        ("vit_tiny_patch16_224", {"embed_dim": 48, "depth": 2, "num_heads": 4}, "own"),
        (
            "swin_tiny_patch4_window7_224",
            {"embed_dim": 24, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4},
            "module",
        ),
    ],
    ids=["ViT", "Swin"],
)
def test_a_folder_of_the_wrapper_is_that_of_timms_model(
    architecture: str, arguments: dict[str, Any], engine: str, tmp_path: Path
) -> None:
    module, pixels = _save_wrapper(tmp_path, architecture, **arguments), torch.randn(2, 3, 64, 64)
    model = read(tmp_path, verify=True).model
    assert (model.engine, model.labels) == (engine, ("cat", "dog", "bird"))
    assert (model.preprocessing.mean, model.preprocessing.interpolation) == ((0.4, 0.5, 0.6), "bilinear")
    with torch.no_grad():
        torch.testing.assert_close(model.network(pixels), module(pixels).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("do_pooling", [True, False])
def test_features_of_the_wrapper_are_read_without_a_classifier(do_pooling: bool, tmp_path: Path) -> None:
    arguments = {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 4}
    config = transformers.TimmWrapperConfig(
        architecture="vit_tiny_patch16_224", model_args=arguments, pretrained_cfg=PRETRAINED, do_pooling=do_pooling
    )
    module, pixels = randomised(transformers.TimmWrapperModel(config)), torch.randn(2, 3, 64, 64)
    module.save_pretrained(tmp_path)
    model = vitviz.load(tmp_path)
    with torch.no_grad():
        expected = module(pixels, do_pooling=True).pooler_output
        torch.testing.assert_close(model.network(pixels), expected, rtol=0, atol=1e-5)


def _captioner(encoder: Any, width: int) -> Any:
    sizes = {"n_embd": 24, "n_layer": 1, "n_head": 2, "vocab_size": 50, "n_positions": 20}
    decoder = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, add_cross_attention=True, is_decoder=True))
    assert width != decoder.config.hidden_size, "there is a map between the two"
    return randomised(transformers.VisionEncoderDecoderModel(encoder=encoder, decoder=decoder))


@pytest.mark.parametrize("name", ["ViT", "DeiT", "Dinov2"])
def test_the_encoder_of_a_captioner_is_opened(name: str, tmp_path: Path) -> None:
    sizes = {entry: value for entry, value in SMALL.items() if name != "Dinov2" or entry != "intermediate_size"}
    config = getattr(transformers, f"{name}Config")(**sizes)
    whole, pixels = _captioner(getattr(transformers, f"{name}Model")(config), 32), torch.randn(2, 3, 32, 32)
    whole.save_pretrained(tmp_path)
    model = vitviz.load(tmp_path)
    assert model.engine == "own" and "decoder of texts" in model.card["left out"]
    with torch.no_grad():
        result = whole.encoder(pixel_values=pixels)
        expected = result.pooler_output if name != "Dinov2" else result.last_hidden_state[:, 0]
        torch.testing.assert_close(model.network(pixels), expected, rtol=0, atol=1e-5)
    # transformers computes attention for a module with eager attention alone.
    eager = type(whole.encoder)(config).eval()
    eager.load_state_dict(whole.encoder.state_dict())
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        matrices = eager(pixel_values=pixels, output_attentions=True).attentions
    for layer, theirs in enumerate(matrices):
        ours = model.network.encode(pixels[:1]).traces[0].weights(layer)
        torch.testing.assert_close(ours, theirs[0], rtol=0, atol=1e-5)
    assert len(matrices) == 2


def test_an_encoder_that_only_transformers_has_is_watched(tmp_path: Path) -> None:
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 2]}
    encoder = transformers.DonutSwinModel(transformers.DonutSwinConfig(**sizes, window_size=4))
    whole, pixels = _captioner(encoder, 32), torch.randn(1, 3, 32, 32)
    whole.save_pretrained(tmp_path)
    model = vitviz.load(tmp_path, normalisation="half")
    assert model.engine == "module" and "DonutSwinModel" in model.card["watched from"]
    with torch.no_grad():
        assert torch.equal(model.network(pixels), whole.encoder(pixels).pooler_output)
