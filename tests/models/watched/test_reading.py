"""What a watched module does with its tokens beside attention: their order, its last layer, and what follows it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import vitviz
from tests.support.modules import DEPTH, PATCH, SIZE, WIDTH, MeanViT, OwnViT, explicit_weights, load_own
from vitviz import ConfigError


class PlainLast(OwnViT):
    """Plain patches come behind the others."""

    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        order = (F.unfold(pixels, PATCH, stride=PATCH).std(1) < 0.02).long().argsort(dim=1, stable=True)
        tokens = super().tokens(pixels)
        return torch.cat([tokens[:, :1], tokens[:, 1:].take_along_dim(order[..., None], 1)], 1)


class Penultimate(OwnViT):
    """Reads the tokens before its last layer."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = torch.nn.Sequential(*self.layers[:-1])(self.tokens(pixels))
        self.layers[-1](tokens)
        return tokens


class LinearLast(OwnViT):
    """Behind its layers, tokens mix without a softmax."""

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().read(tokens + tokens @ (tokens.mT @ tokens) / tokens.shape[1])


class InPlace(OwnViT):
    """Normalises its input in place."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().forward(pixels.sub_(0.1).mul_(2))


class OneByOne(OwnViT):
    """Calls its layers for every picture of a batch at once, by torch.vmap."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        encode = super().encode
        return torch.vmap(lambda picture: encode(picture[None])[0])(pixels)


class Step(OwnViT):
    """A norm stands between the first layer and the others."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = F.layer_norm(self.layers[1](self.layers[0](self.tokens(pixels))), (WIDTH,))
        return self.layers[2](self.layers[1](tokens))


class NormByHand(torch.nn.Module):
    """A mean over the numbers of a token is none over tokens."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens * torch.rsqrt(tokens.pow(2).mean(-1, keepdim=True) + 1e-6)


class FunctionalConvolutions(OwnViT):
    """A convolution between the layers, with its arguments by name."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens, weight = self.tokens(pixels), torch.ones(WIDTH, 1, 3, 3) / 9
        for layer in self.layers:
            mixed = F.conv2d(tokens[:, 1:].mT.unflatten(2, (4, 6)), weight, padding=1, groups=WIDTH).flatten(2).mT
            tokens = layer(torch.cat([tokens[:, :1], tokens[:, 1:] + mixed], 1))
        return tokens


def test_steps_between_layers_hide_none_of_them() -> None:
    model = load_own(Step())
    assert model.network.config.depth == 4
    said = "residual connections join layers 0 to 1 and 2 to 3 among themselves, but not with each other"
    assert any(each.startswith(said) for each in model.assumptions)
    assert load_own(FunctionalConvolutions()).network.config.depth == DEPTH
    deep = OwnViT(scales=(None,) * 12)
    for layer in deep.layers:
        layer.norm, layer.mlp_norm = NormByHand(), NormByHand()
    assert load_own(deep.eval()).network.config.depth == 12


STEM = (torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.GELU(), torch.nn.Conv2d(8, 3, 3, 2))


class Features(OwnViT):
    """Its tokens are features that read pixels of each other's patches, or also a norm over all of them."""

    def __init__(self, *stem: torch.nn.Module) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(*stem)
        self.eval()

    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().tokens(F.interpolate(F.pad(self.stem(pixels), (0, 1, 0, 1)), scale_factor=2.0))


@pytest.mark.parametrize("stem", [STEM, (*STEM, torch.nn.GroupNorm(1, 3)), (torch.nn.AvgPool2d(3, 2),)])
def test_features_that_read_beyond_their_patch_open_and_say_so(stem: tuple[torch.nn.Module, ...]) -> None:
    said = "its tokens read more of the picture than their own patch"
    model = load_own(Features(*stem))
    assert model.network.config.depth == DEPTH
    assert any(each.startswith(said) for each in model.assumptions)
    assert not any(each.startswith(said) for each in load_own(OwnViT()).assumptions)


def test_a_picture_whose_tokens_come_in_another_order_is_refused() -> None:
    network = load_own(PlainLast()).network
    pixels = torch.randn(1, 3, *SIZE)
    network.encode(pixels)
    pixels[..., :PATCH, :PATCH] = 0
    with pytest.raises(ConfigError, match="this picture's tokens are taken in another order than those of noise"):
        network.encode(pixels)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (OwnViT, []),
        (MeanViT, []),
        (Penultimate, [f"the output does not read layer {DEPTH - 1}, the last; end_layer={DEPTH - 2} ends"]),
        (LinearLast, [f"behind layer {DEPTH - 1}, the output reads several tokens together, and no map shows"]),
    ],
)
def test_what_the_output_reads_is_said(kind: type[OwnViT], said: list[str]) -> None:
    found = [each for each in load_own(kind()).assumptions if "the output" in each]
    assert [text[: len(start)] for text, start in zip(found, said, strict=True)] == said


def test_an_output_that_reads_the_picture_beside_the_layers_says_so() -> None:
    model = load_own(OwnViT(), forward=lambda module, pixels: module(pixels) + pixels.mean((1, 2, 3))[:, None])
    assert "the output reads the picture beside the layers, too" in model.assumptions[-1]


def test_a_head_of_zeros_reads_nothing_and_is_not_taken_for_one_that_leaves_out_a_layer() -> None:
    module = OwnViT()
    torch.nn.init.zeros_(module.classifier.weight)
    said = "the output is the same for every picture, as that of a head whose weights are zero"
    assert [each for each in load_own(module).assumptions if "the output" in each] == [said]


def test_a_module_that_changes_its_input_opens_and_leaves_it_alone() -> None:
    module, pixels = InPlace(), torch.randn(1, 3, *SIZE)
    before = pixels.clone()
    logits = load_own(module).network.encode(pixels).logits
    assert torch.equal(pixels, before)
    torch.testing.assert_close(logits, module(pixels.clone()))


def test_a_module_that_maps_its_pictures_opens() -> None:
    module, pixels = OneByOne("written out"), torch.randn(2, 3, *SIZE)
    encoding = load_own(module).network.encode(pixels)
    torch.testing.assert_close(encoding.logits, module(pixels))
    plain = OwnViT("written out")
    plain.load_state_dict(module.state_dict())
    for picture, trace in zip(pixels, encoding.traces, strict=True):
        for layer, weights in enumerate(explicit_weights(plain, picture[None])):
            torch.testing.assert_close(trace.weights(layer), weights, check_dtype=False)


def test_programs_of_torch_export_are_called_by_name(tmp_path: Any) -> None:
    program: Any = torch.export.export(OwnViT(), (torch.randn(1, 3, *SIZE),))
    with pytest.raises(ConfigError, match=r"a program of torch\.export, whose eval\(\) does nothing"):
        load_own(program.module())
    torch.export.save(program, tmp_path / "program.pt2")
    for source in (program, tmp_path / "program.pt2"):
        with pytest.raises(vitviz.CheckpointError, match=r"torch\.export.*state_dict\(\)"):
            vitviz.load(source)
