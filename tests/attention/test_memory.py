"""Free memory of the C library is given back where activations are large."""

from __future__ import annotations

import pytest
import torch

from vitviz.attention import memory


@pytest.fixture
def trims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    monkeypatch.setattr(memory, "_trim", calls.append)
    return calls


def test_free_memory_is_given_back_where_activations_are_large(trims: list[int]) -> None:
    small, large = torch.empty(memory.LARGE_BYTES // 4 - 1), torch.empty(memory.LARGE_BYTES // 4)
    memory.trim_heap(small)
    memory.trim_heap(large.to("meta"))
    assert trims == []
    memory.trim_heap(large)
    assert trims == [0]


@pytest.mark.parametrize(("depth", "layers"), [(1, [0]), (2, [1]), (3, [1, 2]), (12, [6, 9])])
def test_only_two_late_layers_of_many_trim_memory(trims: list[int], depth: int, layers: list[int]) -> None:
    large, trimmed = torch.empty(memory.LARGE_BYTES // 4), []
    for layer in range(depth):
        trims.clear()
        memory.trim_heap(large, layer, depth)
        trimmed += [layer] * len(trims)
    assert trimmed == layers
