"""Patch dropout: what a network sees of an image in a step, and what a run makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.training import SMALL, interrupt_step, same_weights
from vitviz import ConfigError, VisionTransformer
from vitviz.training import loop
from vitviz.training.config import TrainingConfig
from vitviz.training.patch_dropout import forward_some

SEEN = replace(SMALL, seen_patches=5, register_tokens=2)


def network(pooling: str = "cls") -> VisionTransformer:
    torch.manual_seed(0)
    config = replace(SEEN.model_config(classes=3), pooling=pooling)
    return VisionTransformer(config).eval()


def images(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def test_all_patches_give_the_features_of_a_forward_pass() -> None:
    model, pixels = network(), images()
    expected = model(pixels)
    assert torch.equal(model.classifier(forward_some(model, pixels, 16, drawn())), expected)
    assert torch.equal(model.classifier(forward_some(model, pixels, 99, drawn())), expected)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_features_depend_on_as_many_patches_as_are_seen(pooling: str) -> None:
    pixels = images().requires_grad_()
    features = forward_some(network(pooling), pixels, 5, drawn())
    # One feature: the squares of normalised ones have the same sum for all images.
    (gradient,) = torch.autograd.grad(features[:, 0].sum(), pixels)
    patches = gradient.unfold(2, 2, 2).unfold(3, 2, 2).abs().sum((1, 4, 5)).flatten(1)
    assert ((patches > 0).sum(1) == 5).all()
    assert len({tuple(row.tolist()) for row in patches > 0}) > 1, "every image has patches of its own"


@torch.no_grad()
def test_a_seen_patch_keeps_its_position() -> None:
    """A mean over one patch, without attention, is that patch at its place."""
    model = network("mean")
    for layer in model.encoder:
        for parameter in layer.parameters():
            parameter.zero_()
    pixels = images(200)
    tokens, layout = model.embed(pixels)
    each = model.classify_each(tokens[:, layout.prefix_count :].flatten(0, 1)).view(200, 16, 3)
    found = model.classifier(forward_some(model, pixels, 1, drawn()))
    distance = (each - found[:, None]).abs().amax(-1)
    assert (distance.amin(1) < 1e-5).all()
    assert len(distance.argmin(1).unique()) == 16, "every patch is drawn at times"


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupted_run_sees_the_same_patches(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = loop.train(folder, tmp_path / "whole", SEEN)
    with monkeypatch.context() as patch:
        interrupt_step(patch)
        with pytest.raises(KeyboardInterrupt):
            loop.train(folder, tmp_path / "resumed", SEEN)
    resumed, _ = loop.train(folder, tmp_path / "resumed", SEEN)
    assert same_weights(resumed.network, whole.network)
    seeing_all, _ = loop.train(folder, tmp_path / "all", replace(SEEN, seen_patches=0))
    assert not same_weights(seeing_all.network, whole.network)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="seen_patches = -1: expected 0 or more"):
        TrainingConfig(seen_patches=-1)
