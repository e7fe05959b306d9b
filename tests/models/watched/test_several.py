"""Several pictures are watched in one pass, and each is shown as alone."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitviz
from tests.reference_packages import timm, torchvision, transformers
from tests.support.modules import SIZE, WAYS, MeanViT, OwnViT, load_own

pytestmark = pytest.mark.slow

COUNT, TOLERANCE = 5, 1e-5
FACTS: dict[str, Any] = {"normalisation": "half", "labels": ()}
SIZES: dict[str, Any] = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "intermediate_size": 48}


def timm_model(name: str, **options: Any) -> vitviz.Model:
    return vitviz.load(timm.create_model(name, **options).eval(), normalisation="half")


def vit(way: str) -> vitviz.Model:
    config = transformers.ViTConfig(**SIZES, attn_implementation=way)
    return vitviz.load(transformers.ViTModel(config, add_pooling_layer=False).eval(), **FACTS)


MODELS: dict[str, Callable[[], vitviz.Model]] = {
    **{way: lambda way=way: load_own(OwnViT(way, has_bias=way != "MultiheadAttention")) for way in WAYS},
    "a mean": lambda: load_own(MeanViT()),
    "timm": lambda: timm_model("vit_tiny_patch16_224", depth=2, img_size=64),
    "timm, with attention pooling": lambda: timm_model(
        "vit_base_patch16_siglip_224", depth=2, img_size=64, embed_dim=32, num_heads=2
    ),
    "transformers": lambda: vit("sdpa"),
    "transformers, by hand": lambda: vit("eager"),
    "torchvision, tokens first": lambda: vitviz.load(
        torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 48, num_classes=5).eval(),
        **FACTS | {"labels": list("abcde")},
    ),
    "windows": lambda: vitviz.load(
        torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=5).eval(),
        **FACTS | {"labels": list("abcde"), "image_size": 64, "patch_size": 4},
    ),
}


class Count:
    """How many pictures each call of a module has."""

    def __init__(self, module: nn.Module) -> None:
        self.calls: list[int] = []
        module.register_forward_pre_hook(lambda _, given, named: self.add(given, named), with_kwargs=True)

    def add(self, given: Any, named: Any) -> None:
        self.calls.append(len(given[0] if given else named["pixel_values"]))


def pictures(model: vitviz.Model) -> torch.Tensor:
    config, generator = model.network.config, torch.Generator().manual_seed(3)
    return torch.randn(COUNT, config.channels, config.image_height, config.image_width, generator=generator)


def check(model: vitviz.Model, pixels: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    """Each picture of a batch has the output and the trace that it has alone."""
    together = model.network.encode(pixels)
    assert len(together.traces) == len(together.logits) == len(pixels)
    for number, trace in enumerate(together.traces):
        alone = model.network.encode(pixels[number : number + 1])
        expected = alone.traces[0]
        torch.testing.assert_close(together.logits[number], alone.logits[0], atol=tolerance, rtol=tolerance)
        assert (trace.layers, trace.heads, trace.windows) == (expected.layers, expected.heads, expected.windows)
        for layer in range(trace.layers):
            torch.testing.assert_close(trace.weights(layer), expected.weights(layer), atol=tolerance, rtol=0)
            torch.testing.assert_close(trace.log_sums(layer), expected.log_sums(layer), atol=tolerance, rtol=tolerance)
        for name in ("norms", "pooled", "value_norms"):
            both = getattr(trace, name), getattr(expected, name)
            assert both[0] is both[1] or torch.allclose(*both, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_one_pass_and_each_picture_is_as_alone(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    pixels, count = pictures(model), Count(model.network.module)  # type: ignore[attr-defined]
    model.network.encode(pixels)
    count.calls.clear()
    model.network.encode(pixels)
    model.network.encode(torch.cat([pixels, pixels.flip(0)]))
    assert count.calls == [COUNT, 2 * COUNT]
    if model.network.config.classes:
        model.network(pixels)
        assert count.calls[2:] == [COUNT]
    check(model, pixels)
    check(model, torch.cat([pixels, 2 * pixels[:-1]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_batches_of_other_precisions(dtype: torch.dtype) -> None:
    model = load_own(OwnViT().to(dtype))
    check(model, torch.randn(COUNT, 3, *SIZE), 1e-9 if dtype == torch.float64 else 0.05)


def attend_across(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Each token also attends to those of the other pictures."""
    flat = [each.transpose(0, 1).flatten(1, 2)[None] for each in (queries, keys, values)]
    return F.scaled_dot_product_attention(*flat).unflatten(2, (len(queries), -1))[0].transpose(0, 1)


class Mixing(OwnViT):
    """Changes its tokens, or its output, by a function that may read all pictures."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor], way: str = "fused") -> None:
        super().__init__(way)
        self.change = change

    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.change(super().tokens(pixels))


class OfPixels(Mixing):
    """Changes pixels as a whole."""

    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        return OwnViT.tokens(self, self.change(pixels))


class AtTheEnd(Mixing):
    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        return OwnViT.tokens(self, pixels)

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.change(super().read(tokens))


def second_alone(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed[1:2] += changed[:1].mean()
    return changed if len(tensor) > 1 else tensor


def one(tensor: torch.Tensor) -> torch.Tensor:
    if len(tensor) != 1:
        raise RuntimeError("one picture, please")
    return tensor


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one deviation": lambda each: each / each.flatten(1).std(-1).mean(),
    "mean": lambda each: each + each.mean(0, keepdim=True),
    "variance": lambda each: each * (1 + each.var(0, correction=0)),
    "order": lambda each: each.flip(0),
    "roll": lambda each: each.roll(1, 0),
    "sum so far": lambda each: each.cumsum(0),
    "softmax": lambda each: each + each.softmax(0),
    "one is changed": second_alone,
    "quantised together": lambda each: (each * (127 / each.abs().max())).round() * (each.abs().max() / 127),
    "a picture at a time": one,
    "picture by picture": lambda each: torch.cat([picture * 2 for picture in each.split(1)]),
}


@pytest.mark.parametrize("kind", [Mixing, AtTheEnd, OfPixels])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_pictures_that_change_each_other_run_alone(kind: type[Mixing], change: Any) -> None:
    torch.manual_seed(0)
    model = load_own(kind(change))
    pixels, count = torch.randn(COUNT, 3, *SIZE), Count(model.network.module)  # type: ignore[attr-defined]
    expected = [model.network.encode(each) for each in pixels.split(1)]
    for _ in range(2):
        count.calls.clear()
        found = model.network.encode(pixels)
        assert count.calls[-COUNT:] == [1] * COUNT
        assert torch.equal(found.logits, torch.cat([each.logits for each in expected]))
        for trace, each in zip(found.traces, expected, strict=True):
            assert torch.equal(trace.weights(1), each.traces[0].weights(1))
    # Also what occlusion, faithfulness and `vitviz evaluate` ask for.
    torch.testing.assert_close(model.network(pixels), found.logits, atol=TOLERANCE, rtol=TOLERANCE)


def test_attention_across_pictures_runs_alone() -> None:
    torch.manual_seed(0)
    module = OwnViT()
    for layer in module.layers:
        maps = (layer.query, layer.key, layer.value)
        layer.attend = lambda normed, maps=maps: attend_across(  # type: ignore[union-attr,assignment]
            *(each(normed).unflatten(-1, (4, -1)).transpose(1, 2) for each in maps)
        )
    model = load_own(module)
    check(model, torch.randn(COUNT, 3, *SIZE), 0)


class Packed(OwnViT):
    """Returns the tokens of all pictures in one row."""

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(tokens).flatten(0, 1)


def test_tokens_of_all_pictures_in_one_row() -> None:
    check(load_own(Packed(), labels=()), torch.randn(COUNT, 3, *SIZE))


class Sorting(OwnViT):
    """Takes bright patches first."""

    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = super().tokens(pixels)
        return tokens.flip(1).flip(1) if bool(pixels.mean() > 1) else tokens


def test_a_batch_that_takes_another_way_runs_picture_by_picture() -> None:
    model = load_own(Sorting())
    pixels = torch.randn(COUNT, 3, *SIZE)
    check(model, pixels)
    pixels[2] += 20
    check(model, pixels, 0)


def test_a_folder_is_watched_in_batches(tmp_path: Any) -> None:
    model = load_own(OwnViT())
    images = [torch.rand(3, *SIZE) for _ in range(9)]
    count = Count(model.network.module)  # type: ignore[attr-defined]
    found = list(vitviz.analyze_batch(images, model, batch_size=4, value_range=(0, 1)))
    assert count.calls[-2:] == [4, 1]
    for image, analysis in zip(images, found, strict=True):
        alone = vitviz.analyze(image, model, value_range=(0, 1))
        torch.testing.assert_close(analysis.trace.weights(2), alone.trace.weights(2), atol=TOLERANCE, rtol=0)


def test_nothing_of_a_pass_waits_for_the_garbage_collector() -> None:
    model, pixels = load_own(OwnViT()), torch.randn(COUNT, 3, *SIZE)
    model.network.encode(pixels)
    gc.collect()
    gc.disable()
    try:
        model.network.encode(pixels)
        model.network.encode(pixels[:1])
        model.network.stream(pixels[:1])
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_as_many_pictures_as_tokens_are_told_apart() -> None:
    model = vitviz.load(torchvision.models.VisionTransformer(16, 8, 2, 2, 32, 48, num_classes=5).eval(), **FACTS)
    check(model, torch.randn(5, 3, 16, 16))
