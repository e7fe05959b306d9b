"""All benchmarks, in the order in which they run."""

from benchmarks.benchmark import Benchmark
from benchmarks.suite import (
    analysis,
    batch,
    captured,
    explorer,
    floor,
    folder,
    gradients,
    imports,
    interaction,
    large,
    load,
    overlay,
    page,
    probes,
    start,
    storage,
    tokens,
)

BENCHMARKS: dict[str, Benchmark] = {
    module.BENCHMARK.name: module.BENCHMARK
    for module in (
        floor,
        analysis,
        captured,
        gradients,
        probes,
        interaction,
        overlay,
        tokens,
        batch,
        folder,
        large,
        storage,
        explorer,
        page,
        imports,
        start,
        load,
    )
}
