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
    large,
    overlay,
    page,
    probes,
    tokens,
)

BENCHMARKS: dict[str, Benchmark] = {
    module.BENCHMARK.name: module.BENCHMARK
    for module in (
        analysis,
        captured,
        gradients,
        probes,
        interaction,
        overlay,
        tokens,
        folder,
        large,
        explorer,
        page,
        imports,
    )
}
