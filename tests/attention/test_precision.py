"""Errors of half precision, for traces stored in it and for networks that compute in it.

The documentation states the bounds of this file. They hold for maps without discarded entries, as rounding may decide
which of two nearly equal entries is discarded.
"""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.example import ASSETS
from tests.support.makers import MakeNetwork
from vitviz import AttentionTrace, Model, open_image
from vitviz.attention.precision import type_of
from vitviz.attribution import rollout
from vitviz.errors.kinds import ConfigError
from vitviz.training.evaluate import has_bfloat16

PHOTOGRAPHS = sorted(path.name for path in ASSETS.glob("*.jpg"))
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
both_halves = pytest.mark.parametrize("precision", HALVES)
# In the smaller size all of them, in the larger one the first; a long run has all in both.
every_photograph = pytest.mark.parametrize(
    ("name", "side"),
    [
        pytest.param(name, side, marks=() if side == 32 or name == PHOTOGRAPHS[0] else pytest.mark.long)
        for side in (32, 64)
        for name in PHOTOGRAPHS
    ],
)
SHARPNESS = {"even": 1.0, "sharp": 3.0, "one token each": 8.0}
every_sharpness = pytest.mark.parametrize("sharpness", SHARPNESS.values(), ids=SHARPNESS)
VARIANTS: dict[str, dict[str, Any]] = {
    "CLS": {},
    "registers": {"register_tokens": 4},
    "no CLS": {"cls_token": False, "pooling": "mean"},
    "attention pooling": {"cls_token": False, "pooling": "attention"},
    "one layer": {"depth": 1},
    "norms of queries and keys": {"query_key_norm": True},
    "rotary positions": {"rotary": True},
    "gated": {"gated_mlp": True, "activation": "silu"},
    "norms of patches": {"patch_norms": True, "pre_norm": True},
    "projected": {"projection_width": 12, "representation_width": 20},
}
every_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)


def pixels_of(bundled: Model, name: str, side: int) -> torch.Tensor:
    preprocessing = replace(bundled.preprocessing, height=side, width=side)
    return preprocessing.prepare(open_image(ASSETS / name), 4, 4).pixels


def weights_error(found: AttentionTrace, expected: AttentionTrace) -> float:
    layers = range(expected.layers)
    return max(float((found.weights(layer) - expected.weights(layer)).abs().max()) for layer in layers)


def rollout_error(found: AttentionTrace, expected: AttentionTrace) -> float:
    """The largest of three head fusions, relative to the highest value of the map."""
    errors = []
    for fusion in ("mean", "max", "min"):
        maps = [rollout(trace, fusion).values for trace in (found, expected)]
        errors.append(float((maps[0] - maps[1]).abs().max() / maps[1].max()))
    return max(errors)


@pytest.mark.parametrize("name", ["half", "", "float64", "int8", "Float32", "torch.bfloat16"])
def test_an_unknown_precision_is_refused_with_the_legal_ones(make_network: MakeNetwork, name: str) -> None:
    near = {"Float32": "; did you mean 'float32'?", "torch.bfloat16": "; did you mean 'bfloat16'?"}.get(name, "")
    message = f"{name!r}: expected 'float32', 'bfloat16' or 'float16'{near}"
    network = make_network()
    calls = {
        "precision": (lambda: type_of(name), lambda: network.set_precision(name)),
        "storage": (lambda: network.encode(torch.zeros(1, 3, 16, 24), storage=name),),
    }
    for argument, call in ((argument, call) for argument, some in calls.items() for call in some):
        with pytest.raises(ConfigError, match=f"^{re.escape(f'{argument} {message}')}$"):
            call()
    assert network.precision == torch.float32
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


# Traces that are stored in half precision.

# Bounds for attention weights, and for rollouts relative to their highest value: for the trained network with a
# photograph, and for random attention of any sharpness.
STORED = {"bfloat16": (0.01, 0.01), "float16": (0.001, 0.001)}


@pytest.mark.slow
@both_halves
@every_photograph
def test_a_stored_trace_of_a_trained_network_is_as_good_as_stated(
    bundled: Model, name: str, side: int, precision: str
) -> None:
    pixels = pixels_of(bundled, name, side)
    with torch.inference_mode():
        exact, stored = bundled.network.encode(pixels), bundled.network.encode(pixels, storage=precision)
    assert torch.equal(stored.logits, exact.logits)
    of_weights, of_rollouts = STORED[precision]
    assert 0 < weights_error(stored.traces[0], exact.traces[0]) < of_weights
    assert 0 < rollout_error(stored.traces[0], exact.traces[0]) < of_rollouts


@both_halves
@every_sharpness
def test_rounding_moves_attention_no_further_than_it_can(
    make_network: MakeNetwork, sharpness: float, precision: str
) -> None:
    """For any network: scores that move by δ at most move the weights of their row by tanh(δ / 2) at most."""
    network = make_network(attention_scale=sharpness * 8**-0.5)
    with torch.no_grad():
        pixels = torch.randn(1, 3, 16, 24)
        exact, stored = network.encode(pixels).traces[0], network.encode(pixels, storage=precision).traces[0]
    unit = torch.finfo(HALVES[precision]).eps / 2
    for layer in range(3):
        sizes = (exact.queries[layer].abs() @ exact.keys[layer].abs().mT).amax(-1) * exact.scale
        bound = torch.tanh((2 * unit + unit**2) * sizes / 2)
        for row in range(25):
            difference = (stored.row(layer, row) - exact.row(layer, row)).abs().amax(-1)
            assert (difference <= bound[:, row] + 1e-6).all()


@both_halves
def test_a_stored_trace_takes_half_the_memory_and_is_computed_in_single_precision(
    make_network: MakeNetwork, precision: str
) -> None:
    network, pixels = make_network(), torch.randn(2, 3, 16, 24)
    with torch.no_grad():
        exact, stored = network.encode(pixels).traces[1], network.encode(pixels, storage=precision).traces[1]
    assert stored.queries.dtype == stored.keys.dtype == HALVES[precision]
    assert stored.queries.nbytes == exact.queries.nbytes / 2
    assert stored.queries.untyped_storage().nbytes() == stored.queries.nbytes
    assert exact.nbytes - stored.nbytes == 2 * stored.queries.nbytes
    # The log sums of the kernel belong to the unrounded queries and keys.
    assert exact.known_log_sums and not stored.known_log_sums
    assert stored.dtype == torch.float32
    answers = [stored.rows("cls"), stored.rows("patches"), stored.row(1, 4), stored.weights(2), stored.fused(0)]
    for _ in range(2):
        for answer in [*answers, torch.cat([chunk for _, chunk in stored.fused_in_chunks(1)])]:
            assert answer.dtype == torch.float32
            torch.testing.assert_close(answer.sum(-1), torch.ones(answer.shape[:-1]), atol=1e-5, rtol=0)
        assert stored.columns((1, 2)).dtype == stored.log_sums(0).dtype == torch.float32
    # Only storing rounds.
    unrounded = AttentionTrace(stored.queries.double(), stored.keys.double(), stored.scale, stored.layout)
    for layer in range(3):
        torch.testing.assert_close(stored.weights(layer).double(), unrounded.weights(layer), atol=1e-6, rtol=0)
        for key in ("cls", (1, 2), "patches"):
            torch.testing.assert_close(
                stored.column(layer, key).double(), unrounded.column(layer, key), atol=1e-6, rtol=0
            )


# Networks that compute in half precision.

# Bounds for logits relative to the highest one, for weights, and for rollouts relative to their highest value.
# Processors without bfloat16 in hardware round more often.
BFLOAT16_LOGITS = 0.01 if has_bfloat16(torch.device("cpu")) else 0.02
COMPUTED = {"bfloat16": (BFLOAT16_LOGITS, 0.02, 0.015), "float16": (0.002, 0.003, 0.003)}
# The same for random networks.
COMPUTED_AT_RANDOM = {"bfloat16": (0.05, 0.02, 0.02), "float16": (0.006, 0.003, 0.003)}


@every_variant
@both_halves
def test_only_the_linear_maps_of_the_encoder_are_kept_in_fewer_bits(
    make_network: MakeNetwork, changes: dict[str, Any], precision: str
) -> None:
    network = make_network(**changes)
    before = {name: parameter.nbytes for name, parameter in network.named_parameters()}
    assert network.set_precision(precision) is network
    linear = {
        f"{name}.{kind}"
        for name, module in network.named_modules()
        for kind, _ in module.named_parameters(recurse=False)
        if name.startswith("layers.") and isinstance(module, nn.Linear)
    }
    assert {name for name in linear if name.endswith("weight")} == {
        f"layers.{layer}.{name}.weight"
        for layer in range(network.config.depth)
        for name in ("attention.qkv", "attention.projection", "mlp.0", "mlp.2")
    }
    for name, parameter in network.named_parameters():
        assert parameter.dtype == (HALVES[precision] if name in linear else torch.float32), name
        assert parameter.nbytes == before[name] / (2 if name in linear else 1)


def test_layers_in_single_precision_multiply_as_their_caller_says(make_network: MakeNetwork) -> None:
    network = make_network()
    pixels = torch.rand(1, 3, network.config.image_height, network.config.image_width)
    types: list[torch.dtype] = []
    for layer in network.encoder:
        layer.mlp[0].register_forward_hook(lambda module, inputs, output: types.append(output.dtype))
    network(pixels)
    with torch.autocast("cpu", torch.bfloat16):
        network(pixels)
    depth = network.config.depth
    assert types == [torch.float32] * depth + [torch.bfloat16] * depth


@pytest.mark.slow
@both_halves
@every_photograph
def test_a_trained_network_in_half_precision_is_as_good_as_stated(
    bundled: Model, name: str, side: int, precision: str
) -> None:
    half = copy.deepcopy(bundled.network).set_precision(precision)
    pixels = pixels_of(bundled, name, side)
    with torch.inference_mode():
        exact, found = bundled.network.encode(pixels), half.encode(pixels)
    of_logits, of_weights, of_rollouts = COMPUTED[precision]
    assert found.logits.dtype == torch.float32
    assert found.traces[0].queries.dtype == HALVES[precision]
    assert 0 < float((found.logits - exact.logits).abs().max() / exact.logits.abs().max()) < of_logits
    assert 0 < weights_error(found.traces[0], exact.traces[0]) < of_weights
    assert 0 < rollout_error(found.traces[0], exact.traces[0]) < of_rollouts


@pytest.mark.slow
@every_variant
@both_halves
@pytest.mark.parametrize("fused", [True, False])
def test_a_random_network_in_half_precision_is_as_good_as_stated(
    make_network: MakeNetwork, changes: dict[str, Any], precision: str, fused: bool
) -> None:
    network = make_network(**changes)
    half = copy.deepcopy(network).set_precision(precision)
    for layer in half.encoder:
        layer.attention.fused = fused
    pixels = torch.randn(2, 3, 16, 24)
    with torch.no_grad():
        exact, found = network.encode(pixels), half.encode(pixels)
    of_logits, of_weights, of_rollouts = COMPUTED_AT_RANDOM[precision]
    assert found.logits.dtype == torch.float32
    assert 0 < float((found.logits - exact.logits).abs().max() / exact.logits.abs().max()) < of_logits
    for trace, expected in zip(found.traces, exact.traces, strict=True):
        assert trace.queries.dtype == trace.keys.dtype == HALVES[precision]
        # The sums are those of rounded weights, unlike the trace's own.
        assert not trace.known_log_sums
        for layer in range(trace.layers):
            rows = trace.weights(layer).sum(-1)
            torch.testing.assert_close(rows, torch.ones_like(rows), atol=1e-5, rtol=0)
        assert 0 < weights_error(trace, expected) < of_weights
        assert 0 < rollout_error(trace, expected) < of_rollouts


@both_halves
def test_the_stream_between_the_layers_stays_in_single_precision(make_network: MakeNetwork, precision: str) -> None:
    network = make_network().set_precision(precision)
    streams: list[torch.dtype] = []
    hidden: list[torch.dtype] = []
    for layer in network.encoder:
        layer.register_forward_hook(lambda module, inputs, output: streams.extend([inputs[0].dtype, output.dtype]))
        layer.mlp[0].register_forward_hook(lambda module, inputs, output: hidden.append(output.dtype))
    network(torch.randn(1, 3, 16, 24))
    assert streams == [torch.float32] * 6
    assert hidden == [HALVES[precision]] * 3


def test_bits_that_were_dropped_do_not_come_back(make_network: MakeNetwork) -> None:
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    rounded = copy.deepcopy(network)
    for layer in rounded.encoder:
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                module.to(torch.bfloat16).to(torch.float32)
    there_and_back = network.set_precision("bfloat16").set_precision("float32")
    assert {parameter.dtype for parameter in there_and_back.parameters()} == {torch.float32}
    assert torch.equal(there_and_back(pixels), rounded(pixels))
