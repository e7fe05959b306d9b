"""Windows, several grids and reordered tokens: attention is mapped to the right patches of the picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vitviz
from tests.support.comparison import closeness
from tests.support.modules import (
    HEADS,
    LABELS,
    PATCH,
    SIZE,
    WIDTH,
    OwnViT,
    explicit_weights,
    load_own,
    randomised,
    windows,
)
from vitviz import ConfigError, ImageError, VitvizError
from vitviz.attribution import METHODS, AttributionInput
from vitviz.metrics.ablation import switched_off
from vitviz.models.targets import class_target
from vitviz.models.watched.finder import MAX_STEPS
from vitviz.ui.packs import pack

pytestmark = pytest.mark.slow

close = closeness(tolerance=1e-5, any_type=True)
GRID = (SIZE[0] // PATCH, SIZE[1] // PATCH)
DIM = WIDTH // HEADS


class WindowLayer(nn.Module):
    """Attention inside shifted windows, written in one of three ways; stores its weights."""

    def __init__(self, width: int, heads: int, index: torch.Tensor, way: str, has_bias: bool) -> None:
        super().__init__()
        self.heads, self.index, self.way = heads, index, way
        self.norm, self.maps = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        count = index.shape[1]
        self.bias = nn.Parameter(torch.randn(heads, count, count)) if has_bias else None
        # As in Swin, the last window hides tokens from the other end of the picture.
        self.mask = torch.zeros(len(index), 1, count, count)
        self.mask[-1, 0, : count // 2, count // 2 :] = -100.0
        self.weights, self.is_explicit = torch.empty(0), False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        normed = self.norm(tokens)[:, self.index.flatten()].unflatten(1, tuple(self.index.shape))
        queries, keys, values = self.maps(normed).unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        bias = self.mask if self.bias is None else self.mask + self.bias
        with torch.no_grad():
            scores = queries.double() @ keys.double().mT * queries.shape[-1] ** -0.5 + bias
            # Not by a softmax, which would be watched, too.
            self.weights = (scores.exp() / scores.exp().sum(-1, keepdim=True))[0]
        if self.way == "heads first":
            queries, keys, values = (tensor.transpose(1, 2) for tensor in (queries, keys, values))
            bias = bias.transpose(0, 1)
        elif self.way == "batch of windows":
            queries, keys, values = (tensor.flatten(0, 1) for tensor in (queries, keys, values))
        if self.is_explicit:
            weights = (queries @ keys.mT * DIM**-0.5 + bias).softmax(-1)
            self.weights = weights
            weights.retain_grad()
            context = weights @ values
        else:
            context = nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        if self.way == "heads first":
            context = context.transpose(1, 2)
        elif self.way == "batch of windows":
            context = context[None]
        context = context.transpose(2, 3).flatten(3).flatten(1, 2)
        return tokens + self.projection(context[:, self.index.flatten().argsort()])


class Hierarchical(OwnViT):
    """Two layers in shifted windows, a merge of every four patches, and two global layers."""

    def __init__(self, way: str = "batch of windows", has_bias: bool = True, coarse_layers: int = 2) -> None:
        super().__init__()
        index = [windows(GRID, (2, 2), shift) for shift in (0, 1)]
        all_tokens = torch.arange(GRID[0] * GRID[1] // 4)[None]
        self.layers = nn.ModuleList(WindowLayer(WIDTH, HEADS, each, way, has_bias) for each in index)
        self.merging = nn.Linear(4 * WIDTH, 2 * WIDTH)
        self.coarse = nn.ModuleList(
            WindowLayer(2 * WIDTH, 2 * HEADS, all_tokens, way, has_bias) for _ in range(coarse_layers)
        )
        self.classifier = nn.Linear(2 * WIDTH, len(LABELS))
        randomised(self, 0.2)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(pixels)[:, 1:]
        for layer in self.layers:
            tokens = layer(tokens)
        grid = tokens.unflatten(1, (GRID[0] // 2, 2, GRID[1] // 2, 2)).transpose(2, 3)
        tokens = self.merging(grid.flatten(3, -1).flatten(1, 2))
        for layer in self.coarse:
            tokens = layer(tokens)
        return self.classifier(tokens.mean(1))


def on_the_picture(layer: WindowLayer, values: torch.Tensor | None = None) -> torch.Tensor:
    """Values of each window, by default its weights, as ``"head query key"`` of all patches; zero between windows."""
    count = layer.index.numel()
    matrix = torch.zeros(layer.heads, count, count, dtype=torch.float64)
    for weights, places in zip(layer.weights if values is None else values, layer.index, strict=True):
        matrix[:, places[:, None], places] = weights.double()
    return matrix


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("way", ["windows", "heads first", "batch of windows"])
def test_windows_lie_on_the_picture(way: str, has_bias: bool) -> None:
    """Their weights, their gradients, and their heads that are switched off."""
    module, pixels = Hierarchical(way, has_bias), torch.randn(1, 3, *SIZE)
    model = load_own(module, prefix=None, patch_size=PATCH)
    encoding = model.network.encode(pixels)
    # With gradients torch uses another kernel, which rounds differently.
    with torch.no_grad():
        assert torch.equal(encoding.logits, module(pixels))
    trace = encoding.traces[0]
    assert (trace.layers, trace.heads, trace.layout.prefix) == (2, HEADS, ())
    for number, layer in enumerate(module.layers):
        expected = on_the_picture(layer)
        close(trace.weights(number), expected)
        close(trace.row(number, (1, 2)), expected[:, trace.layout.index((1, 2))])
        close(trace.column(number, (3, 5)), expected[..., trace.layout.index((3, 5))])
        assert float((expected == 0).float().mean()) >= 0.75

    found = AttributionInput(model.network, pixels, class_target(1, len(LABELS))).gradients
    relevance = METHODS["relevance"].compute(found, query=(1, 2)).values
    without = switched_off(model.network, pixels, [(1, 2)])
    with pytest.raises(VitvizError, match=r"^Hierarchical: patches can be hidden only if every layer .*"):
        switched_off(model.network, pixels, patches=[(0, 0)])
    for layer in module.layers:
        layer.way, layer.is_explicit = "windows", True
    module(pixels)[0, 1].backward()
    matrix = torch.eye(24, dtype=torch.float64)
    for layer in module.layers:
        weights, gradient = layer.weights.detach(), layer.weights.grad
        product = on_the_picture(layer, (weights * gradient).reshape(-1, *weights.shape[-3:]))
        matrix = matrix + product.relu().mean(0) @ matrix
    close(relevance.flatten(), matrix[trace.layout.index((1, 2))])
    assert relevance.max() > 1e-6 and METHODS["gradient_rollout"].compute(found, query=(1, 2)).values.any()
    module.layers[1].projection.weight.data[:, 2 * DIM : 3 * DIM] = 0
    close(without, module(pixels)[0].detach())


def test_the_grid_of_most_layers_is_shown_and_any_other_can_be() -> None:
    module = Hierarchical(coarse_layers=3)
    model = load_own(module, prefix=None)
    assert "patches of 8 pixels: 3 layers of 2×3; patch_size=4 shows other layers" in model.assumptions
    trace = model.network.encode(torch.randn(1, 3, *SIZE)).traces[0]
    assert (trace.layers, trace.heads, trace.layout.grid_height, trace.layout.grid_width) == (3, 2 * HEADS, 2, 3)
    for number, layer in enumerate(module.coarse):
        close(trace.weights(number), on_the_picture(layer))
    fine = load_own(module, prefix=None, patch_size=4)
    assert not any(text.startswith("patches") for text in fine.assumptions)
    assert fine.card["grid"] == "patches of 4 pixels: 2 layers of 4×6; patch_size=8 shows other layers"
    assert load_own(Hierarchical(), prefix=None).network.config.depth == 2, "of as many layers, the finer"


def test_everything_else_works_inside_windows() -> None:
    model = load_own(Hierarchical(), prefix=None, patch_size=PATCH)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8))
    analysis = vitviz.analyze(image, model)
    for method in ("rollout", "attention_mass", "attention_flow", "grad_cam"):
        assert np.isfinite(np.asarray(analysis.map(method).values)).all()
    caption = analysis.attention(1, query=(0, 0)).description
    assert caption.endswith("to each patch, layer 1 of 0–1, mean of 4 heads, within its window of the 4×6 grid")
    # What an analysis holds is counted before, with the biases that make windows.
    analysis.map("relevance", target=1)
    held = next(iter(analysis._inputs.values())).gradients
    tensors = (*held.queries, *held.keys, *held.values, *held.gradients, *held.biases)
    nbytes = sum({id(each): each.nbytes for each in tensors if each is not None}.values())
    assert 2 * HEADS * 24 * 24 * 4 < nbytes <= analysis.nbytes - analysis.trace.nbytes
    window = set(windows(GRID, (2, 2), 0)[0].tolist())
    row = analysis.attention(0, query=(0, 0)).values
    attended = {place for place, value in enumerate(np.asarray(row).flatten()) if value > 0}
    assert attended == window
    assert len(pack(analysis.trace, "layer 0")) > 24 * 24 * HEADS * 2


class Columns(OwnViT):
    """Orders patches column by column."""

    order = (0, *(1 + 6 * row + column for column in range(6) for row in range(4)))

    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().tokens(pixels)[:, list(self.order)]


def test_tokens_in_another_order_are_put_in_that_of_the_picture() -> None:
    module, pixels = Columns(), torch.randn(1, 3, *SIZE)
    back = torch.tensor(module.order).argsort()
    trace = load_own(module).network.encode(pixels).traces[0]
    for number, weights in enumerate(explicit_weights(module, pixels)):
        close(trace.weights(number), weights[:, back][:, :, back])


class Stem(Hierarchical):
    """Convolutions before the patch embedding, which mix neighbouring patches."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.stem = nn.Conv2d(3, 3, 3, padding=1)
        nn.init.normal_(self.stem.weight, 0, 0.3)
        self.eval()

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().forward(self.stem(self.stem(pixels)))


def test_a_stem_that_mixes_neighbours_is_seen_through() -> None:
    module = Stem()
    trace = load_own(module, prefix=None, patch_size=PATCH).network.encode(torch.randn(1, 3, *SIZE)).traces[0]
    for number, layer in enumerate(module.layers):
        close(trace.weights(number), on_the_picture(layer))


class Padded(OwnViT):
    """Two layers in windows that reach beyond the picture, padded with zeros, and a global one, as in SAM.

    Args:
        fused: whether to use the fused kernel.
        window: rows and columns of a window's tokens.
    """

    def __init__(self, fused: bool = True, window: tuple[int, int] = (3, 4)) -> None:
        super().__init__()
        self.fused, self.window = fused, window
        self.weights: list[torch.Tensor] = []
        self.maps = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(3))
        self.heads = nn.Linear(WIDTH, len(LABELS))
        self.bias = nn.Parameter(torch.randn(HEADS, window[0] * window[1], window[0] * window[1]))
        randomised(self)

    def attend(self, number: int, windows: torch.Tensor) -> torch.Tensor:
        queries, keys, values = self.maps[number](windows).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        bias = self.bias if number < 2 else torch.zeros(1)
        if self.fused:
            context = nn.functional.scaled_dot_product_attention(
                queries, keys, values, bias.expand(len(windows), HEADS, *[windows.shape[1]] * 2)
            )
        else:
            scores, column = queries @ keys.mT * DIM**-0.5, self.bias.flatten()[:DIM]
            # Of no consequence; as SAM's relative positions, it is made by many operations.
            for _ in range(MAX_STEPS):
                column = 1.01 * column
            weights = (scores + bias + queries @ column[:, None]).softmax(-1)
            if weights.requires_grad:
                weights.retain_grad()
            self.weights.append(weights)
            context = weights @ values
        return context.transpose(1, 2).flatten(2)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        grid, (rows, columns) = (pixels.shape[2] // PATCH, pixels.shape[3] // PATCH), self.window
        down, right = -(-grid[0] // rows), -(-grid[1] // columns)
        tokens = self.tokens(pixels)[:, 1:]
        self.weights = []
        for number in range(2):
            picture = nn.functional.layer_norm(tokens, (WIDTH,)).unflatten(1, grid)
            extra = (0, 0, 0, right * columns - grid[1], 0, down * rows - grid[0])
            windows = nn.functional.pad(picture, extra).unflatten(2, (right, columns)).unflatten(1, (down, rows))
            context = self.attend(number, windows.transpose(2, 3).flatten(3, 4).flatten(0, 2))
            padded = context.unflatten(0, (1, down, right)).unflatten(3, self.window).transpose(2, 3)
            tokens = tokens + padded.flatten(3, 4).flatten(1, 2)[:, : grid[0], : grid[1]].flatten(1, 2)
        tokens = tokens + self.attend(2, tokens)
        return self.heads(tokens.mean(1))


def padded_windows(grid: tuple[int, int], window: tuple[int, int]) -> torch.Tensor:
    """``"window token"``: the patches of every window, counted from 1; 0 for padding."""
    numbers = torch.arange(grid[0] * grid[1]).view(1, 1, *grid) + 1
    rows, columns = (-(-side // size) * size for side, size in zip(grid, window, strict=True))
    padded = nn.functional.pad(numbers, (0, columns - grid[1], 0, rows - grid[0]))[0, 0]
    return padded.unfold(0, window[0], window[0]).unfold(1, window[1], window[1]).flatten(2).flatten(0, 1)


def gather_padding(weights: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """``"window head query key"`` as ``"head query key"`` of padding and patches, all of the padding as one key."""
    count = int(index.max()) + 1
    matrix = torch.zeros(HEADS, count, count)
    for window, places in zip(weights, index, strict=True):
        for query, place in enumerate(places.tolist()):
            if place:
                matrix[:, place].index_add_(1, places, window[:, query])
    matrix[:, 0, 0] = 1
    return matrix


@pytest.mark.parametrize("window", [(3, 4), (4, 4), (5, 7)], ids=str)
def test_the_padding_of_windows_is_one_token_with_its_total_attention(window: tuple[int, int]) -> None:
    explicit = Padded(fused=False, window=window)
    module = Padded(window=window)
    module.load_state_dict(explicit.state_dict())
    model = load_own(module, prefix=None, patch_size=PATCH)
    pixels = torch.randn(1, 3, *SIZE)
    expected = explicit(pixels)
    trace = model.network.encode(pixels).traces[0]
    assert trace.layout.prefix == ("padding",)
    close(model.network.encode(pixels).logits, expected.detach())
    all_tokens = torch.arange(1, GRID[0] * GRID[1] + 1)[None]
    index = [padded_windows(GRID, window)] * 2 + [all_tokens]
    matrices = [
        gather_padding(weights.detach(), window_index)
        for weights, window_index in zip(explicit.weights, index, strict=True)
    ]
    for layer, matrix in enumerate(matrices):
        close(trace.weights(layer), matrix)
    assert float(matrices[0][:, 1:, 0].max()) > 0.1 and float(matrices[2][:, 1:, 0].sum()) == 0
    expected[0, 1].backward()
    gradients = [weights.grad for weights in explicit.weights]
    relevance = torch.eye(len(matrices[0][0]))
    for matrix, gradient, window_index in zip(matrices, gradients, index, strict=True):
        assert gradient is not None
        # A key that stands for several has the gradient of each of them, as their values are equal.
        several = gather_padding(gradient, window_index) / gather_padding(
            torch.ones_like(gradient), window_index
        ).clamp(min=1)
        several[:, 0] = 0
        relevance = relevance + (matrix * several).relu().mean(0) @ relevance
    inputs = AttributionInput(model.network, pixels, class_target(1, len(LABELS)))
    found = METHODS["relevance"].compute(inputs.gradients, query=(1, 2)).values
    close(found.flatten(), relevance[1 + 1 * GRID[1] + 2, 1:])
    by_hand = load_own(explicit, prefix=None, patch_size=PATCH).network.encode(pixels).traces[0]
    for layer, matrix in enumerate(matrices):
        close(by_hand.weights(layer), matrix)


def test_padding_in_one_window_of_all_layers_is_no_prefix() -> None:
    class OneWindow(Padded):
        def attend(self, number: int, windows: torch.Tensor) -> torch.Tensor:
            return windows if number == 2 else super().attend(number, windows)

    model = load_own(OneWindow(window=(5, 7)), prefix=[], patch_size=PATCH)
    assert (model.network.config.prefix, model.network.config.depth) == (("padding",), 2)


def test_tokens_beside_the_patches_that_differ_are_no_padding() -> None:
    class Placed(Padded):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Parameter(torch.randn(self.window[0] * self.window[1], WIDTH))

        def attend(self, number: int, windows: torch.Tensor) -> torch.Tensor:
            return super().attend(number, windows + self.places if number < 2 else windows)

    with pytest.raises(ConfigError, match="the tokens beside the patches are not all the same"):
        load_own(Placed(), prefix=None, patch_size=PATCH)


def test_padding_at_the_modules_own_size_is_a_prefix_token_at_every_size() -> None:
    module, wide = Padded(), (SIZE[0] * 3 // 2, SIZE[1] * 2 // 3)
    model = load_own(module, prefix=None, patch_size=PATCH)
    assert (wide[0] // PATCH % 3, wide[1] // PATCH % 4) == (0, 0), "windows that fit"
    trace = model.network.encode(torch.randn(1, 3, *wide)).traces[0]
    assert trace.layout.prefix == ("padding",)
    assert float(trace.column(0, 0)[:, 1:].abs().max()) == 0
    fitting = load_own(module, prefix=None, patch_size=PATCH, image_size=wide)
    assert fitting.network.config.prefix == ()
    with pytest.raises(ImageError, match=r"windows reach beyond an image of .*, and not at its own size$"):
        fitting.network.encode(torch.randn(1, 3, *SIZE))


class Channels(Hierarchical):
    """Between two layers of windows, features attend to features."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.layers[0](self.tokens(pixels)[:, 1:])
        features = tokens.mT[:, None]
        context = nn.functional.scaled_dot_product_attention(features, features, features)[:, 0].mT
        return self.classifier(torch.cat([self.layers[1](tokens + context)] * 2, -1).mean(1))


REFUSALS = {
    Channels: "Channels: 2 layers attend among the 4×6 patches, but 1 call between them does not, such as 32 .*"
}


@pytest.mark.parametrize(("kind", "message"), REFUSALS.items(), ids=[kind.__name__ for kind in REFUSALS])
def test_other_windows_are_refused_as_what_they_are(kind: type[Hierarchical], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        load_own(kind(), prefix=None, patch_size=PATCH)
