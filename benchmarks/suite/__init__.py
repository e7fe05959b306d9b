"""All benchmarks, in the order in which they run."""

from benchmarks.benchmark import Benchmark
from benchmarks.suite import (
    analysis,
    captured,
    explorer,
    folder,
    gradients,
    imports,
    interaction,
    load,
    page,
    tokens,
)

BENCHMARKS: dict[str, Benchmark] = {
    module.BENCHMARK.name: module.BENCHMARK
    for module in (
        analysis,
        captured,
        gradients,
        interaction,
        tokens,
        folder,
        explorer,
        page,
        imports,
        load,
    )
}
