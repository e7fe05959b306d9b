"""Initial weights, optimisers, schedule and averaged weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.fft
import torch
from einops import rearrange

from vitviz import (
    VisionTransformer,
    ViTConfig,
)
from vitviz.training.augment import BRIGHTNESS
from vitviz.training.muon import Muon, orthogonalise
from vitviz.training.optimise import (
    average_into,
    colour_limit,
    initialise,
    optimisers,
    schedule,
    sine_positions,
)


@pytest.mark.parametrize(
    ("step", "steps", "warmup", "factor"),
    [
        (0, 100, 0.1, 0.1),
        (4, 100, 0.1, 0.5),
        (9, 100, 0.1, 1.0),
        (10, 100, 0.1, 1.0),
        (55, 100, 0.1, 0.5),
        (40, 100, 0.1, 0.75),
        (99, 100, 0.1, 0.5 + 0.5 * np.cos(np.pi * 89 / 90)),
        (100, 100, 0.1, 0.0),
        (0, 10, 0.0, 1.0),
        (0, 10, 1.0, 0.1),
        (9, 10, 1.0, 1.0),
        (0, 1, 0.05, 1.0),
    ],
)
def test_rates_rise_linearly_and_fall_as_half_a_cosine(step: int, steps: int, warmup: float, factor: float) -> None:
    assert schedule(step, steps, warmup) == pytest.approx(factor, abs=1e-12)


@pytest.mark.parametrize(
    ("step", "warmup", "cooldown", "factor"),
    [
        (9, 0.1, 0.3, 1.0),
        (69, 0.1, 0.3, 1.0),
        (70, 0.1, 0.3, 1.0),
        (85, 0.1, 0.3, 0.5),
        (100, 0.1, 0.3, 0.0),
        (99, 0.1, 0.0, 1.0),
        (75, 0.5, 0.9, 0.5),
    ],
)
def test_rates_stay_highest_until_the_cool_down(step: int, warmup: float, cooldown: float, factor: float) -> None:
    assert schedule(step, 100, warmup, cooldown) == pytest.approx(factor, abs=1e-12)


@pytest.mark.parametrize(("step", "share"), [(0, 0.9), (90, 0.09), (10**6, 0.01)])
def test_averaged_weights_follow_the_current_ones(step: int, share: float) -> None:
    averaged, network = torch.nn.Linear(2, 2).requires_grad_(False), torch.nn.Linear(2, 2)
    expected = [a.lerp(b, share) for a, b in zip(averaged.parameters(), network.parameters(), strict=True)]
    average_into(averaged, network, step, 0.99)
    torch.testing.assert_close(list(averaged.parameters()), expected)


def likeness(matrix: torch.Tensor) -> float:
    """Correlation of a square matrix's entries with those of the identity."""
    both = torch.stack([matrix.flatten(), torch.eye(len(matrix)).flatten()])
    return float(torch.corrcoef(both)[0, 1])


def attention_products(network: VisionTransformer) -> tuple[list[float], list[float]]:
    """Likeness to the identity, of the product of queries and keys per head, and of values and projection per layer."""
    scores, outputs = [], []
    for layer in network.encoder:
        queries, keys, values = rearrange(
            layer.attention.qkv.weight.detach(), "(part inner) width -> part inner width", part=3
        )
        heads = network.config.heads
        for query, key in zip(queries.chunk(heads), keys.chunk(heads), strict=True):
            scores.append(likeness(query.T @ key))
        outputs.append(likeness(layer.attention.projection.weight.detach() @ values))
    return scores, outputs


@pytest.mark.parametrize(("heads", "head_width"), [(4, 16), (2, 16), (4, 32)])
def test_starting_weights_look_like_those_of_a_trained_network(heads: int, head_width: int) -> None:
    """Trockman & Kolter 2023: queries agree with keys; values times projection is near a negative identity."""
    config = ViTConfig(16, 16, 4, 4, width=64, depth=2, heads=heads, head_width=head_width, mlp_width=64, classes=3)
    network = VisionTransformer(config)
    scores, outputs = attention_products(network)
    assert max(map(abs, scores + outputs)) < 0.1, "torch's own weights pass: the test says nothing"
    initialise(network)
    scores, outputs = attention_products(network)
    assert min(scores) > 0.25
    assert max(outputs) < -0.4
    if heads * head_width >= 64:
        assert max(outputs) < -0.6
    biases = [module.bias for module in network.modules() if isinstance(module, torch.nn.Linear)]
    assert not any(bias.any() for bias in biases)
    assert not network(torch.rand(2, 3, 16, 16)).any(), "before the first step no class is preferred"


@pytest.mark.parametrize("width", [64, 66, 16])
def test_starting_positions_are_different_everywhere_and_nearer_where_patches_are(width: int) -> None:
    positions = sine_positions(6, 9, width)
    assert positions.shape == (6, 9, width)
    assert positions.abs().max() <= 1
    assert len({place.numpy().tobytes() for place in positions.flatten(0, 1)}) == 54
    distance = (positions - positions[0, 0]).norm(dim=-1)
    assert distance[0, 1] < distance[0, 2] < distance[2, 2]
    torch.testing.assert_close(distance[:6, 0], distance[0, :6])


def test_every_parameter_has_one_optimiser(make_network: Callable[..., VisionTransformer]) -> None:
    network = make_network()
    muon, adam = optimisers(network, 0.1, 0.2, 0.3)
    matrices, rest = (
        [parameter for group in part.param_groups for parameter in group["params"]] for part in (muon, adam)
    )
    owned = [id(parameter) for parameter in matrices + rest]
    assert sorted(owned) == sorted(map(id, network.parameters()))
    assert {id(parameter) for parameter in matrices} == {
        id(parameter)
        for name, parameter in network.named_parameters()
        if name.startswith("layers.") and parameter.ndim == 2
    }


@pytest.mark.parametrize("shape", [(6, 6), (6, 40)])
def test_orthogonalised_matrices_keep_their_directions_and_lose_their_lengths(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalise(matrices)
    for matrix, result in zip(matrices, found, strict=True):
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        middle = left.T @ result @ right.T
        assert middle.diagonal().min() > 0.6 and middle.diagonal().max() < 1.3
        assert (middle - middle.diagonal().diag()).abs().max() < 0.05


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason=f"torch {torch.__version__} has no Muon to compare with")
def test_muon_is_that_of_torch_but_for_rounding() -> None:
    """Tall, wide and square matrices, several of one shape, over some steps with weight decay."""
    random = torch.Generator().manual_seed(0)
    shapes = [(8, 24), (24, 8), (8, 8), (8, 24)]
    mine = [torch.nn.Parameter(torch.randn(shape, generator=random)) for shape in shapes]
    others = [torch.nn.Parameter(matrix.detach().clone()) for matrix in mine]
    start = [matrix.detach().clone() for matrix in mine]
    pair = Muon(mine, 0.02, 0.1), torch.optim.Muon(others, 0.02, 0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for matrix, other in zip(mine, others, strict=True):
            matrix.grad = torch.randn(matrix.shape, generator=random)
            other.grad = matrix.grad.clone()
        for optimiser in pair:
            optimiser.step()
    for matrix, other, before in zip(mine, others, start, strict=True):
        moved = (other - before).norm()
        assert (matrix - other).norm() < 0.02 * moved, "more than bfloat16 rounds away"
        assert moved > 0.1


@pytest.mark.parametrize("frequencies", [1, 2, 5])
def test_colours_finer_than_the_limit_are_not_seen_and_all_else_is(frequencies: int) -> None:
    side, std = 8, (0.2, 0.3, 0.4)
    random = np.random.default_rng(0)
    brightness = random.normal(size=(1, side, side))
    colours = random.normal(size=(3, side, side))
    colours -= np.einsum("c,chw->hw", BRIGHTNESS, colours)
    waves = scipy.fft.dctn(colours, axes=(1, 2))
    kept = (np.arange(side) < frequencies)[:, None] & (np.arange(side) < frequencies)
    low, high = (scipy.fft.idctn(waves * mask, axes=(1, 2)) for mask in (kept, ~kept))
    limit = colour_limit(side, frequencies, std).double()

    def seen(picture: np.ndarray) -> np.ndarray:
        return (limit @ torch.from_numpy(picture / np.array(std)[:, None, None]).flatten()).numpy()

    np.testing.assert_allclose(seen(high), 0, atol=1e-5)
    for whole in (brightness + low, brightness.repeat(3, 0), low):
        np.testing.assert_allclose(seen(whole), (whole / np.array(std)[:, None, None]).ravel(), atol=1e-5)


def test_as_many_frequencies_as_pixels_limit_nothing() -> None:
    torch.testing.assert_close(colour_limit(4, 4, (0.2, 0.3, 0.4)), torch.eye(48), atol=1e-5, rtol=0)
