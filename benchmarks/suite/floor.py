"""The peak rates of this machine, and the least time of an analysis at these rates."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch

from benchmarks.benchmark import Benchmark, Case, Facts, Settings
from benchmarks.shapes import FIVE, TI_16, Shape

RATES, FLOORS = "What this machine can do", "The least time of an analysis with mean rollout"
RATE = "billion per second"
LEAST_TIME = "least, s"
PRODUCT, EXPONENTIAL, READING, COPYING, FIRST_WRITE = (
    "operations of a matrix product",
    "exponentials, in the second-level cache",
    "bytes read",
    "bytes copied, counted once read and once written",
    "bytes first written to fresh memory",
)
PRODUCTS = ((1370, 768, 3072), (1370, 3072, 768), (1370, 768, 768), (2048, 2048, 2048), (4096, 1024, 1024))
CACHED_NUMBERS = 2**18


@torch.inference_mode()
def facts(case: Case, settings: Settings) -> Facts:
    nbytes, repeats = (4 * 2**20, 3) if settings.quick else (256 * 2**20, 15)
    source = torch.ones(nbytes // 4)
    target, cached = torch.zeros_like(source), torch.rand(CACHED_NUMBERS)
    exponentials = torch.empty_like(cached)
    rates = {
        PRODUCT: max(_product_rate(*size, repeats) for size in (((64, 64, 64),) if settings.quick else PRODUCTS)),
        EXPONENTIAL: CACHED_NUMBERS / _best(lambda: torch.exp(cached, out=exponentials), 20 * repeats),
        READING: nbytes / _best(source.sum, repeats),
        COPYING: 2 * nbytes / _best(lambda: target.copy_(source), repeats),
        FIRST_WRITE: nbytes / _best(lambda: np.empty(nbytes, np.uint8).fill(1), repeats),
    }
    return {
        RATES: {name: {RATE: rate / 1e9} for name, rate in rates.items()},
        FLOORS: {shape.title: _floor(shape, rates) for shape in FIVE},
    }


def _best(run: Callable[[], object], repeats: int) -> float:
    """The least time of several runs, since disturbances can only make a run slower."""
    times = []
    for _ in range(repeats + 1):
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return min(times[1:])


def _product_rate(rows: int, inner: int, columns: int, repeats: int) -> float:
    left, right, result = torch.rand(rows, inner), torch.rand(inner, columns), torch.empty(rows, columns)
    return 2 * rows * inner * columns / _best(lambda: torch.mm(left, right, out=result), repeats)


def _floor(shape: Shape, rates: dict[str, float]) -> dict[str, float]:
    forward, scores, exponentials = forward_operations(shape), rollout_operations(shape), exponentials_of(shape)
    weights, trace = weight_bytes(shape), trace_bytes(shape)
    products_time = (forward + scores) / rates[PRODUCT]
    exponentials_time = exponentials / rates[EXPONENTIAL]
    # The weights are read; the trace is copied in the forward pass, and read by the rollout.
    bytes_time = (weights + trace) / rates[READING] + 2 * trace / rates[COPYING]
    return {
        "forward, 10⁹ operations": forward / 1e9,
        "rollout, 10⁹ operations": scores / 1e9,
        "10⁹ exponentials": exponentials / 1e9,
        "trace, MiB": trace / 2**20,
        "products, s": products_time,
        "exponentials, s": exponentials_time,
        "bytes, s": bytes_time,
        LEAST_TIME: products_time + exponentials_time + bytes_time,
    }


def forward_operations(shape: Shape) -> float:
    """Operations of the matrix products of a forward pass; in the top layer, other tokens stop at keys and values."""
    tokens, width = shape.tokens, shape.width
    embedding = 2 * (tokens - 1) * 3 * shape.patch**2 * width
    layer = 24 * tokens * width**2 + 4 * tokens**2 * width
    top = 6 * tokens * width**2 + 18 * width**2 + 4 * tokens * width
    return embedding + (shape.depth - 1) * layer + top + 2 * width * shape.classes


def rollout_operations(shape: Shape) -> float:
    """Operations of the scores of all layers but the top one, which needs only one row."""
    return (shape.depth - 1) * 2 * shape.tokens**2 * shape.width


def exponentials_of(shape: Shape) -> float:
    """Exponentials of attention, in the forward pass and in the rollout, and one for each activation of the MLPs."""
    return (shape.depth - 1) * (2 * shape.heads * shape.tokens**2 + 4 * shape.tokens * shape.width)


def weight_bytes(shape: Shape) -> float:
    return 4 * (12 * shape.depth * shape.width**2 + shape.width * (3 * shape.patch**2 + shape.classes + shape.tokens))


def trace_bytes(shape: Shape) -> float:
    """Bytes of the queries and keys of all layers."""
    return 4 * 2 * shape.depth * shape.tokens * shape.width


BENCHMARK = Benchmark(
    "floor",
    "The physical floor",
    "The best of several runs each. The least time is that of the matrix products, the exponentials and the bytes of "
    "an analysis at these rates, one after the other.",
    (Case(TI_16, 1, variant="this machine"),),
    facts=facts,
)
