"""Blocks of memory are reused, by one owner at a time, and do not pile up."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from vitviz.attention import memory
from vitviz.attention.memory import BLOCK_BYTES, BlockPool, empty

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
LARGE = (3, BLOCK_BYTES // 8 + 5)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> BlockPool:
    """The pool of :func:`vitviz.attention.memory.empty`, with nothing in it and room for 64 blocks."""
    pool = BlockPool(64 * BLOCK_BYTES)
    monkeypatch.setattr(memory, "_pool", pool)
    return pool


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(), (0,), (0, 5), (3, 4), (1, 1, 7), (BLOCK_BYTES // 8,), LARGE, (2, *LARGE)], ids=str
)
def test_an_empty_tensor_has_its_shape_and_type_and_may_be_written(
    pool: BlockPool, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    tensor = empty(shape, torch.zeros(2, 2, dtype=dtype))
    assert (tensor.shape, tensor.dtype, tensor.device.type) == (shape, dtype, "cpu")
    assert tensor.is_contiguous() and not tensor.requires_grad
    tensor.fill_(1.5)
    assert (tensor == 1.5).all()


def test_a_large_block_is_used_again_once_it_is_free(pool: BlockPool) -> None:
    first = empty(LARGE, torch.zeros(1))
    address, size = first.data_ptr(), first.nbytes
    assert pool.nbytes == 0
    del first
    assert size <= pool.nbytes < size + BLOCK_BYTES
    # A tensor of another shape and type that is a little smaller fits the same block.
    second = empty((LARGE[1] - 3, 3), torch.zeros(1, dtype=torch.int32))
    assert second.data_ptr() == address
    assert pool.nbytes == 0


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda tensor: tensor,
    "one entry": lambda tensor: tensor[1, 2],
    "a slice": lambda tensor: tensor[1:, 5:9],
    "reshaped": lambda tensor: tensor.view(-1),
    "transposed": lambda tensor: tensor.T,
    "detached": lambda tensor: tensor.detach(),
    "of another type": lambda tensor: tensor.view(torch.int32),
    "a slice of a slice": lambda tensor: tensor[1:][:, 7:][:, ::2],
    "an array": lambda tensor: tensor.numpy(),
    "a slice of an array": lambda tensor: tensor.numpy()[1:, 3:],
    "a plain view of an array": lambda tensor: np.asarray(tensor.numpy()).view(np.ndarray).reshape(-1)[4:],
    "a tensor of an array": lambda tensor: torch.from_numpy(tensor.numpy()[2:]),
    "a buffer of an array": lambda tensor: memoryview(tensor.numpy()),
    "its storage": lambda tensor: tensor.untyped_storage(),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_block_is_not_given_out_while_a_view_of_it_lives(pool: BlockPool, view: Callable[..., Any]) -> None:
    tensor = empty(LARGE, torch.zeros(1)).fill_(1.5)
    address, size = tensor.data_ptr(), tensor.nbytes
    alive = view(tensor)
    del tensor
    assert pool.nbytes == 0
    other = empty(LARGE, torch.zeros(1))
    assert not other.data_ptr() <= address < other.data_ptr() + size
    del alive
    assert pool.nbytes >= size


def test_a_block_in_a_reference_cycle_comes_back_with_the_garbage(pool: BlockPool) -> None:
    cycle: list[object] = [empty(LARGE, torch.zeros(1))]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert pool.nbytes >= 4 * LARGE[0] * LARGE[1]


# The bound.


@pytest.mark.parametrize(("room", "kept"), [(0, 0), (BLOCK_BYTES - 1, 0), (3 * BLOCK_BYTES, 3), (9 * BLOCK_BYTES, 5)])
def test_idle_blocks_stay_within_their_bound_and_the_oldest_leave(room: int, kept: int) -> None:
    pool = BlockPool(room)
    blocks = [pool.take(1) for _ in range(5)]
    # The third block was returned last, so it is dropped last.
    order = [0, 1, 3, 4, 2]
    addresses = [blocks[place].ctypes.data for place in order]
    for place in order:
        blocks[place] = np.empty(0)
        assert pool.nbytes <= room
    assert pool.nbytes == kept * BLOCK_BYTES
    reused = [pool.take(1) for _ in range(kept)]
    assert {block.ctypes.data for block in reused} == set(addresses[len(order) - kept :])
    assert pool.nbytes == 0


# Threads and the garbage collector.


def test_many_threads_never_share_a_block() -> None:
    pool = BlockPool(4 * BLOCK_BYTES)

    def work(number: int) -> int:
        chance, wrong = random.Random(number), 0
        for _ in range(300):
            # Write one number a page: the whole block would only take longer.
            pages = pool.take(chance.choice([1, BLOCK_BYTES + 1]))[::4096]
            pages[:] = number
            time.sleep(0)
            wrong += int((pages != number).any())
        return wrong

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(work, range(8))) == 0
    finally:
        sys.setswitchinterval(interval)
    assert 0 < pool.nbytes <= 4 * BLOCK_BYTES


class Garbage:
    """An object in a reference cycle, which only the garbage collector frees."""

    def __init__(self, payload: object) -> None:
        self.payload, self.itself = payload, self


def test_a_block_returned_by_the_garbage_collector_during_take_does_not_change_the_size() -> None:
    thresholds = gc.get_threshold()
    sizes = []
    try:
        for moment in range(1, 60):
            gc.disable()
            pool = BlockPool(3 * BLOCK_BYTES)
            garbage = Garbage(pool.take(1))
            small, large = pool.take(1), pool.take(2 * BLOCK_BYTES)
            del small, large, garbage
            # The collector runs after this many new objects, at some point within take.
            gc.set_threshold(gc.get_count()[0] + moment)
            gc.enable()
            sizes.append(pool.take(2 * BLOCK_BYTES).nbytes)
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert set(sizes) == {2 * BLOCK_BYTES}


# Copies.


# Free memory that the C library keeps.


@pytest.fixture
def trims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    monkeypatch.setattr(memory, "_trim", calls.append)
    return calls


def test_free_memory_is_given_back_where_activations_are_large(trims: list[int]) -> None:
    small, large = torch.empty(memory.BLOCK_BYTES // 4 - 1), torch.empty(memory.BLOCK_BYTES // 4)
    memory.trim_heap(small)
    memory.trim_heap(large.to("meta"))
    assert trims == []
    memory.trim_heap(large)
    assert trims == [0]


@pytest.mark.parametrize(("depth", "layers"), [(1, [0]), (2, [1]), (3, [1, 2]), (12, [6, 9])])
def test_only_two_late_layers_of_many_trim_memory(trims: list[int], depth: int, layers: list[int]) -> None:
    large, trimmed = torch.empty(memory.BLOCK_BYTES // 4), []
    for layer in range(depth):
        trims.clear()
        memory.trim_heap(large, layer, depth)
        trimmed += [layer] * len(trims)
    assert trimmed == layers
