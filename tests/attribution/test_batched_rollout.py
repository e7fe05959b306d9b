"""The rollout of many images at once is that of each alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.attention import LAYOUTS
from vitviz import AttentionTrace, MethodError, QueryError, TokenLayout
from vitviz.attention import group
from vitviz.attention.group import groups_of
from vitviz.attribution import batched_rollout, rollout
from vitviz.attribution.batched_rollout import rollouts

FUSIONS = ("mean", "max", "min")
PARAMETERS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "discarded": {"discard_ratio": 0.7},
    "everything but one entry discarded": {"discard_ratio": 0.99},
    "no residual": {"residual_weight": 0.0},
    "no residual, discarded": {"residual_weight": 0.0, "discard_ratio": 0.9},
    "residual alone": {"residual_weight": 1.0},
    "later start": {"start_layer": -1},
    "a patch": {"query": (1, 2)},
    "all patches": {"query": "patches"},
    "without some": {"exclude": [(0, 1), (1, 0)]},
    "without sinks": {"exclude": "sinks"},
}


def traces(
    layout: TokenLayout, count: int = 7, dtype: torch.dtype = torch.float32, **changes: Any
) -> list[AttentionTrace]:
    """Traces with sharp attention. Every second one knows its log sums, like those of a forward pass."""
    torch.manual_seed(0)
    found = []
    for number in range(count):
        queries, keys = torch.randn(2, 3, 2, layout.token_count, 4, dtype=dtype) * 2
        trace = AttentionTrace(queries, keys, 0.5, layout, **changes)
        if number % 2:
            for layer in range(trace.layers):
                trace.log_sums(layer)
        found.append(trace)
    return found


def check(found: list[Any], alone: list[Any]) -> None:
    assert len(found) == len(alone)
    for trace_map, expected in zip(found, alone, strict=True):
        assert trace_map.description == expected.description and trace_map.quantity == expected.quantity
        torch.testing.assert_close(trace_map.values, expected.values, atol=1e-6, rtol=0)
        assert trace_map.prefix == pytest.approx(expected.prefix, abs=1e-6, rel=1e-6)


@pytest.fixture(autouse=True)
def group_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of images whose rollouts were computed together."""
    sizes: list[int] = []
    propagated = batched_rollout._propagate_group

    def spy(setups: Any) -> torch.Tensor:
        sizes.append(len(setups))
        return propagated(setups)

    monkeypatch.setattr(batched_rollout, "_propagate_group", spy)
    monkeypatch.setattr(group, "pays", lambda trace: True)
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS)
def test_every_parameter_gives_what_it_gives_alone(
    fusion: str, parameters: dict[str, Any], group_sizes: list[int]
) -> None:
    for layout in LAYOUTS.values():
        if layout.grid_height < 2 or layout.grid_width < 3:
            continue
        several = traces(layout)
        check(rollouts(several, fusion, **parameters), [rollout(trace, fusion, **parameters) for trace in several])
    assert group_sizes and set(group_sizes) == {7}


def test_equal_weights_at_the_limit_are_discarded_alike(group_sizes: list[int]) -> None:
    several = [replace(trace, queries=torch.zeros_like(trace.queries)) for trace in traces(TokenLayout(("cls",), 3, 4))]
    several = [replace(trace, known_log_sums={}) for trace in several]
    for parameters in ({"discard_ratio": 0.5}, {"discard_ratio": 0.5, "reference": "vit-explain"}):
        check(rollouts(several, **parameters), [rollout(trace, **parameters) for trace in several])
    assert group_sizes == [7, 7]


def test_biases_and_pooling_are_each_image_s_own(group_sizes: list[int]) -> None:
    layout = TokenLayout((), 3, 4)
    several = [
        replace(trace, bias=torch.randn(1, 2, 12, 12), pooled=torch.rand(2, 12).softmax(-1), known_log_sums={})
        for trace in traces(layout, 4)
    ]
    for parameters in ({}, {"query": (1, 1)}, {"head_fusion": "max", "discard_ratio": 0.5}, {"exclude": [(0, 0)]}):
        check(rollouts(several, **parameters), [rollout(trace, **parameters) for trace in several])
    assert group_sizes == [4] * 4


def test_traces_of_different_shapes_are_not_mixed_and_stay_in_order(
    group_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = TokenLayout(("cls",), 2, 3), TokenLayout(("cls",), 3, 4)
    several = [*traces(small, 3), *traces(large, 2), *traces(small, 1), *traces(large, 2, torch.float64)]
    check(rollouts(several), [rollout(trace) for trace in several])
    assert group_sizes == [3, 2, 2]
    # Two heads of 13 × 13 weights in single precision are 1,352 bytes.
    monkeypatch.setattr(group, "DEVICE_CHUNK_BYTES", 3 * 1352)
    assert [len(each) for each in groups_of(traces(large, 7))] == [3, 3, 1]
    monkeypatch.setattr(group, "DEVICE_CHUNK_BYTES", 1)
    assert [len(each) for each in groups_of(traces(large, 3))] == [1, 1, 1]
    check(rollouts(several), [rollout(trace) for trace in several])
    # On a processor, one by one.
    monkeypatch.undo()
    assert [len(each) for each in groups_of(traces(large, 2))] == [1, 1]


def test_wrong_parameters_are_refused_as_for_one_image() -> None:
    several = traces(TokenLayout(("cls",), 3, 4))
    for kind, parameters in (
        (MethodError, {"head_fusion": "sum"}),
        (MethodError, {"discard_ratio": 1.0}),
        (QueryError, {"query": (9, 9)}),
        (QueryError, {"start_layer": 12}),
    ):
        with pytest.raises(kind) as together_error:
            rollouts(several, **parameters)  # type: ignore[arg-type]
        with pytest.raises(kind) as alone_error:
            rollout(several[0], **parameters)  # type: ignore[arg-type]
        assert str(together_error.value) == str(alone_error.value)
    assert rollouts([]) == []
