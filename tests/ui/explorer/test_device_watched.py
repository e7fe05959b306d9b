"""Sites of watched models: vitviz's own network with their weights, on the visitor's device."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitviz
from tests.parity.case import randomised
from tests.reference_packages import timm, transformers
from tests.support.device import Pass, on_device
from tests.support.modules import OwnViT, load_own
from vitviz import ConfigError
from vitviz.ui.explorer.device_page import device_page
from vitviz.ui.explorer.device_site import write_site

pytestmark = pytest.mark.parity

TOLERANCE = 1e-4
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}


def dinov2() -> Any:
    config = transformers.Dinov2Config(**SMALL, mlp_ratio=2, num_labels=5)
    return randomised(transformers.Dinov2ForImageClassification(config))


def dinov3() -> Any:
    config = transformers.DINOv3ViTConfig(**SMALL, intermediate_size=48, num_register_tokens=3)
    return randomised(transformers.DINOv3ViTModel(config))


def dinov3_of_timm() -> Any:
    small = {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": 32}
    return randomised(timm.create_model("vit_small_patch16_dinov3", **small))


def network_of(part: bytes) -> bytes:
    """The device file in a part of a site."""
    halves = np.frombuffer(gzip.decompress(part), np.uint8).reshape(2, -1)
    return halves[::-1].T.tobytes()


def test_a_site_of_watched_models_has_their_numbers(tmp_path: Path) -> None:
    makers: tuple[Callable[[], Any], ...] = (dinov2, dinov3, dinov3_of_timm)
    models = [vitviz.load(make(), normalisation="imagenet") for make in makers]
    assert {model.engine for model in models} == {"module"}
    page = device_page(models, ids=["", "second", "third"], is_downloaded=True)
    assert "vitviz's own, with the weights of the watched one" in str(page.start["models"][""])
    write_site(page, tmp_path / "site")
    for number, model in enumerate(models):
        [part] = (tmp_path / "site").glob(f"*/model-{number}.gz")
        network, layout = model.network, model.layout
        sides = model.preprocessing.height, model.preprocessing.width
        pixels = torch.randn(1, 3, *sides, generator=torch.Generator().manual_seed(number))
        [found] = on_device(network_of(part.read_bytes()), [Pass(pixels)])
        for name in ("logits", "features"):
            expected = network.output(pixels, name)[0]
            torch.testing.assert_close(found[name], expected, rtol=TOLERANCE, atol=TOLERANCE)
        [trace] = network.encode(pixels).traces
        shape = trace.layers, trace.heads, layout.token_count, -1
        queries, keys = (found[name].view(shape) for name in ("queries", "keys"))
        scores = queries @ keys.mT * (queries.shape[-1] ** -0.5)
        for layer in range(trace.layers):
            torch.testing.assert_close(scores[layer].softmax(-1), trace.weights(layer), rtol=0, atol=TOLERANCE)


def test_a_watched_module_that_is_no_network_of_ours_is_refused_by_its_name() -> None:
    model = load_own(OwnViT())
    with pytest.raises(
        ConfigError, match=rf"^{model.name} is a network that vitviz's own is not, so that no page can run it: "
    ):
        device_page([model])
