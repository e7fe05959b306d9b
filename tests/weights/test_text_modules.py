"""Texts of a network of pictures and texts in memory: no folder is needed, and the scores are the network's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.parity.case import randomised
from tests.reference_packages import open_clip, transformers
from tests.support.modules import OwnViT, load_own
from tests.towers import TEXT, VISION, write_tokenizer
from vitviz import Analysis
from vitviz.errors.kinds import ConfigError, MethodError

pytestmark = pytest.mark.parity

WORDS = "a cat"
SIZE = {"image_size": 32, "patch_size": 8}


def clip(tokenizer: Any) -> tuple[Any, Any]:
    config = transformers.CLIPConfig(vision_config=VISION | SIZE, text_config=VISION | TEXT, projection_dim=24)
    return randomised(transformers.CLIPModel(config)), tokenizer


def siglip(tokenizer: Any) -> tuple[Any, Any]:
    text = VISION | TEXT | {"projection_size": 32}
    config = transformers.SiglipConfig(vision_config=VISION | SIZE, text_config=text)
    return randomised(transformers.SiglipModel(config)), tokenizer


def clip_of_open_clip(tokenizer: Any) -> tuple[Any, Any]:
    vision = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 8}
    text = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    return randomised(open_clip.CLIP(24, vision, text)), None


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return transformers.CLIPTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8))


def expected_logit(network: Any, tokenizer: Any, pixels: torch.Tensor) -> float:
    with torch.no_grad():
        if tokenizer is None:
            return float(network.get_logits(pixels, open_clip.tokenize([WORDS]))[0])
        tokens = tokenizer([WORDS], padding="max_length", max_length=10, truncation=True, return_tensors="pt")
        return float(network(pixel_values=pixels, **tokens).logits_per_image)


def check_texts(analysis: Analysis, expected: float) -> None:
    target = analysis.model.text(WORDS)
    found = target.score(analysis.network.output(analysis.prepared.pixels, "features")[0])
    assert float(found) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert analysis.relevance(target=target).values.shape == (4, 4)


@pytest.mark.parametrize("make", [clip, siglip, clip_of_open_clip], ids=["CLIP", "SigLIP", "open_clip"])
def test_the_score_of_a_text_is_the_logit_of_the_network(
    make: Callable[[Any], tuple[Any, Any]], tokenizer: Any, picture: Image.Image
) -> None:
    network, words = make(tokenizer)
    model = vitviz.load(network, normalisation="clip", tokenizer=words)
    assert model.engine == "module" and model.labels == ()
    analysis = vitviz.analyze(picture, model)
    check_texts(analysis, expected_logit(network, words, analysis.prepared.pixels))
    # What nobody stated is said.
    assert any("open_clip's own tokenizer" in each for each in model.assumptions) == (words is None)


def test_a_processor_brings_its_tokenizer(tokenizer: Any, picture: Image.Image) -> None:
    network, _ = clip(tokenizer)
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = transformers.CLIPProcessor(image_processor=images, tokenizer=tokenizer)
    analysis = vitviz.analyze(picture, vitviz.load(network, preprocessing=processor))
    check_texts(analysis, expected_logit(network, tokenizer, analysis.prepared.pixels))


def test_pictures_of_any_shape_have_texts(tokenizer: Any, picture: Image.Image) -> None:
    vision = VISION | {"patch_size": 8, "num_patches": 16}
    config = transformers.Siglip2Config(vision_config=vision, text_config=VISION | TEXT | {"projection_size": 32})
    network = randomised(transformers.Siglip2Model(config))
    model = vitviz.load(network, normalisation="half", image_size=32, tokenizer=tokenizer, engine="module")
    analysis = vitviz.analyze(picture, model)
    rows = analysis.prepared.pixels.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1).reshape(1, 16, -1)
    tokens = tokenizer([WORDS], padding="max_length", max_length=10, truncation=True, return_tensors="pt")
    with torch.no_grad():
        expected = network(
            pixel_values=rows,
            pixel_attention_mask=torch.ones(1, 16, dtype=torch.long),
            spatial_shapes=torch.tensor([[4, 4]]),
            **tokens,
        ).logits_per_image
    check_texts(analysis, float(expected))


def test_a_missing_tokenizer_is_asked_for_when_a_text_comes(tokenizer: Any, picture: Image.Image) -> None:
    network, _ = clip(tokenizer)
    model = vitviz.load(network, normalisation="clip")
    assert vitviz.analyze(picture, model).rollout().values.shape == (4, 4)
    with pytest.raises(MethodError, match=r"its tokenizer; expected vitviz\.load\(module, preprocessing=processor\)"):
        model.text(WORDS)
    with pytest.raises(MethodError, match="text of 0 characters"):
        model.text(" ")
    with pytest.raises(ConfigError, match="tokenizer: the module reads no texts; expected one with get_text_features"):
        load_own(OwnViT(), tokenizer=tokenizer)
