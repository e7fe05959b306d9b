"""A module whose attention cannot be watched exactly is refused in a sentence."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

import vitviz
from tests.support.modules import DEPTH, SIZE, MeanViT, OwnViT, load_own, picture, state_of
from tests.support.refusals import check_refusals
from vitviz import ConfigError, ImageError


class RandomFlip(OwnViT):
    """Two passes agree in half of all cases."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().forward(pixels.flip(-1) if random.random() < 0.5 else pixels)


class Random(OwnViT):
    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().forward(pixels) * torch.rand(())


class Blind(OwnViT):
    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.tokens(pixels).mean(1))


class Leaving(OwnViT):
    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().read(torch.from_numpy(tokens.numpy(force=True)))


class Failing(OwnViT):
    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        raise AssertionError("Input height (16)\n  does not match")


class RelativeValues(OwnViT):
    """Shaw et al. 2018, "Self-Attention with Relative Position Representations", equation 3: positions on values."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(pixels)[:, None]
        weights, (count, width) = (tokens @ tokens.mT).softmax(-1), tokens.shape[-2:]
        positions = torch.linspace(-1, 1, count**2).view(count, count, 1).expand(-1, -1, width)
        return self.classifier((weights @ tokens + torch.einsum("bhqk,qkd->bhqd", weights, positions))[:, 0, 0])


RANDOM = r"its pass on an image differs by \S+ when it is run again: expected a module that draws no random numbers"
REFUSALS = {
    RelativeValues: "RelativeValues: layer 0: its attention weights make another product .*",
    RandomFlip: rf"RandomFlip: {RANDOM}",
    Random: rf"Random: {RANDOM}",
    Blind: "Blind: no attention was seen: .*",
    Leaving: r"Leaving: its output is no result of operations on the picture .* none through numpy\(\), .*",
}


@pytest.mark.parametrize(("kind", "message"), REFUSALS.items(), ids=[kind.__name__ for kind in REFUSALS])
def test_a_module_that_cannot_be_watched_exactly_is_refused(kind: type[OwnViT], message: str) -> None:
    module = kind()
    before = state_of(module)
    with pytest.raises(ConfigError, match=f"^{message}$"):
        load_own(module)
    assert state_of(module) == before


class Changing(OwnViT):
    """Has as many layers and tokens as its attributes say."""

    depth, count = DEPTH, 25

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(pixels)[:, : self.count]
        for layer in list(self.layers)[: self.depth]:
            tokens = layer(tokens)
        return tokens


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 2}, "2 layers of 4 heads; when it was verified, this module had 3 of 4"),
        ({"count": 20}, "attention among 20 tokens: fewer than the 24 patches of the picture"),
    ],
)
def test_a_module_that_attends_otherwise_later_is_refused(change: dict[str, int], message: str) -> None:
    module = Changing()
    model = load_own(module)
    for name, value in change.items():
        setattr(module, name, value)
    with pytest.raises(ConfigError, match=message):
        model.network.encode(torch.randn(1, 3, *SIZE))


class Counting(OwnViT):
    passes = 0

    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().tokens(pixels) * (1 + 1e-9 * self.passes)


def test_a_module_that_computes_with_another_number_each_time_is_refused_in_a_sentence() -> None:
    model = load_own(Counting())
    with pytest.raises(ConfigError, match=r"^Counting: its pass is another one each time, at operation \d+, mul: "):
        model.network.encode(torch.randn(1, 3, *SIZE))


def test_a_module_that_handles_its_errors_is_not_changed() -> None:
    class Falling(OwnViT):
        way = "fused"

        def encode(self, pixels: torch.Tensor) -> torch.Tensor:
            try:
                return super().encode(pixels)
            except Exception:
                self.way = "another kernel"
            return self.tokens(pixels)

    module = Falling()
    load_own(module)
    assert module.way == "fused"


class Fixed(OwnViT):
    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        if tuple(pixels.shape[-2:]) != SIZE:
            raise ValueError("only 24×16")
        return super().tokens(pixels)


def test_what_the_module_does_not_take_is_one_sentence() -> None:
    model = load_own(Fixed())
    images = {
        r"Failing does not take .*: AssertionError: Input height \(16\) .*; image_size=": lambda: load_own(Failing()),
        "Fixed does not take an image of 48×32 pixels: ValueError: only 24×16$": lambda: vitviz.analyze(
            picture(), model, resolution=32
        ),
    }
    check_refusals(ImageError, images)
    settings = {
        "OwnViT: attention among 25 tokens: fewer than the 96 patches": lambda: load_own(OwnViT(), patch_size=2),
        "OwnViT: attention among 25 tokens: in no layer do they match the 2×3 patches one to one$": lambda: load_own(
            OwnViT(), patch_size=8
        ),
        r"OwnViT: 4 tokens that are no patches \(1 before them\), and prefix=\['cls'\] names 1; .* 3'\]$": lambda: (
            load_own(OwnViT(registers=3))
        ),
        r"OwnViT: prefix=\['register 1', 'cls'\]: of these tokens, the output reads 'register 1' alone; expected the "
        r"name 'cls' for what it reads, such as prefix=\['cls', 'register 1'\]$": lambda: load_own(
            OwnViT(registers=1), prefix=["register 1", "cls"]
        ),
    }
    check_refusals(ConfigError, settings)


@pytest.mark.parametrize("count", [1, 2])
def test_a_cls_token_by_a_number_that_nothing_proves_is_an_assumption(count: int) -> None:
    said = f"prefix 'cls': the first of {count} tokens without names; its output may read other tokens, too"
    assert said in load_own(MeanViT(registers=count - 1), prefix=count).assumptions
    names = ["cls", "register 1"][:count]
    for model in (
        load_own(MeanViT(registers=count - 1), prefix=names),
        load_own(OwnViT(registers=count - 1), prefix=count),
    ):
        assert model.network.config.prefix == tuple(names)
        assert not any("without names" in each for each in model.assumptions)


def in_training(module: OwnViT) -> nn.Module:
    module.layers[1].mlp.train()
    return module


STATES = {
    "training": (lambda: OwnViT().train(), "OwnViT: it is in training mode, .*: call module.eval.. first"),
    "partly training": (
        lambda: in_training(OwnViT()),
        r"OwnViT: its part 'layers\.1\.mlp' is in training mode, where dropout is random: call module.eval\(\) first",
    ),
    "scripted": (
        lambda: torch.jit.trace(OwnViT(), torch.randn(1, 3, *SIZE)),
        "TopLevelTracedModule: it is scripted by torch.jit, inside which nothing is seen: expected it in Python",
    ),
    "meta": (lambda: OwnViT().to("meta"), "OwnViT: weights on the meta device, .*"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "message"), STATES.values(), ids=STATES)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_a_module_in_another_state_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        load_own(make())


def test_a_module_put_into_training_mode_after_loading_is_refused() -> None:
    module = OwnViT()
    model = load_own(module)
    module.train()
    with pytest.raises(ConfigError, match="training mode"):
        vitviz.analyze(picture(), model)
    assert module.training


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_modules_are_unwrapped_or_refused() -> None:
    module = OwnViT()
    assert load_own(torch.compile(module)).name == "OwnViT"
    assert load_own(nn.DataParallel(module).eval()).network.config.depth == DEPTH
    inner = OwnViT()
    inner.layers[0].compile()
    with pytest.raises(ConfigError, match=r"^OwnViT: its part 'layers\.0' is compiled, .*"):
        load_own(inner)


def test_quantised_linear_maps_are_watched_as_they_compute() -> None:
    import warnings

    from torch.ao.quantization import quantize_dynamic

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = quantize_dynamic(OwnViT("fused"), {nn.Linear}, dtype=torch.qint8).eval()
    pixels = torch.randn(1, 3, *SIZE)
    assert torch.equal(load_own(module).network.encode(pixels).logits, module(pixels))
