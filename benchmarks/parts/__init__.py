"""The parts of the benchmark, in the order in which they run."""

from benchmarks.part import Part
from benchmarks.parts import (
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

PARTS: dict[str, Part] = {
    module.PART.name: module.PART
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
