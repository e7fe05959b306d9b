"""Networks for clips, windows in one dimension with the heads, and two tokens in one parameter, held to packages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import vitviz
from tests.parity.case import randomised
from tests.parity.coverage.subject import Subject, looked_at
from tests.parity.coverage.timm_subjects import materialised
from tests.reference_packages import timm, transformers
from tests.support.comparison import closeness
from vitviz.errors.kinds import CheckpointError, VitvizError

pytestmark = pytest.mark.parity
close = closeness(tolerance=1e-5, any_type=True)
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 32}
CLIPS = {
    "VideoMAEModel": {"patch_size": 8, "num_frames": 6, "tubelet_size": 2},
    "VivitModel": {"num_frames": 6, "tubelet_size": [2, 8, 8]},
}


def network(name: str) -> Any:
    kind = getattr(transformers, name)
    return randomised(kind(kind.config_class(**SIZES, **CLIPS[name])))


@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_is_a_strip_of_its_tubes(name: str) -> None:
    module = network(name)
    model = vitviz.load(module, normalisation="half")
    frames = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    trace = vitviz.analyze(np.concatenate(frames), model).trace
    assert (trace.layout.grid_height, trace.layout.grid_width) == (3 * 4, 4)
    clip = torch.stack([torch.from_numpy(each).permute(2, 0, 1) / 127.5 - 1 for each in frames for _ in range(2)])
    module.set_attn_implementation("eager")
    with torch.no_grad():
        expected = module(pixel_values=clip[None], output_attentions=True).attentions
    for layer in range(2):
        assert float(expected[layer].std()) > 1e-4
        close(trace.weights(layer), expected[layer][0])


def test_a_strip_of_another_height_is_refused() -> None:
    model = vitviz.load(network("VideoMAEModel"), normalisation="half")
    with pytest.raises(VitvizError, match="does not take an image of 32×88 pixels: EinopsError"):
        model.network.encode(torch.zeros(1, 3, 88, 32))


TIMM: dict[str, dict[str, Any]] = {
    # Heads and windows are one dimension, and windows of 14 patches reach beyond the picture.
    "samvit_base_patch16": {"depth": 4, "embed_dim": 24, "num_heads": 2, "img_size": 320},
    "pit_ti_distilled_224": {"depth": (1, 1, 1)},
}


@pytest.mark.parametrize("name", TIMM)
def test_an_architecture_is_exact(name: str) -> None:
    torch.manual_seed(0)
    row = looked_at(Subject("timm", "", name, lambda: randomised(timm.create_model(name, **TIMM[name])), materialised))
    assert row["result"] == "exact", row


def test_preprocessing_that_vitviz_does_not_do_is_asked_for() -> None:
    module = randomised(timm.create_model("deepseek_vit_412m_enc", depth=1, embed_dim=32, num_heads=2, img_size=56))
    with pytest.raises(
        CheckpointError,
        match=r"crop_mode 'center' or 'squash'.*'border'.*expected preprocessing = .* or normalisation = ",
    ):
        vitviz.load(module)
    assert vitviz.load(module, normalisation="half").network.config.depth == 1
