"""The peak rates of this machine, and the least time of an analysis at these rates."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch

from benchmarks.benchmark import Benchmark, Case, Facts, Settings
from benchmarks.shapes import (
    FIVE,
    TI_16,
    Shape,
    exponentials_of,
    forward_operations,
    rollout_operations,
    trace_bytes,
    weight_bytes,
)

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


BENCHMARK = Benchmark(
    "floor",
    "The physical floor",
    "The best of several runs each. The least time is that of the matrix products, the exponentials and the bytes of "
    "an analysis at these rates, one after the other.",
    (Case(TI_16, 1, variant="this machine"),),
    facts=facts,
)
