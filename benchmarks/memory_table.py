"""A table of the memory that usual models need, by formula: ``python -m benchmarks.memory_table``."""

from __future__ import annotations

import torch

from benchmarks.networks import B_14, B_16, L_14, L_16, S_14, S_16, TI_16, Shape
from benchmarks.tables import table
from vitviz.analysis.costs import cost_of
from vitviz.models.vit import VisionTransformer

# Sides of square inputs in pixels; each is rounded down to a multiple of the patch.
SIDES = (224, 448, 518, 1036)
SHAPES = (TI_16, S_16, B_16, L_16, S_14, B_14, L_14)


def weight_bytes(shape: Shape) -> int:
    """Bytes of the weights in single precision."""
    # The meta device allocates nothing.
    with torch.device("meta"):
        return sum(parameter.nbytes for parameter in VisionTransformer(shape.config).parameters())


def side(shape: Shape, pixels: int) -> int:
    """The largest multiple of the patch up to a number of pixels."""
    return pixels // shape.patch * shape.patch


def memory_table() -> str:
    """Weights, and bytes of the trace and in total for an analysis at each resolution, in MiB, as Markdown."""
    rows = {}
    for shape in SHAPES:
        rows[f"ViT-{shape.name}"] = cells = {"weights": f"{weight_bytes(shape) / 2**20:,.0f}"}
        for pixels in SIDES:
            cost = cost_of(shape.config, shape.config.layout(side(shape, pixels), side(shape, pixels)))
            sides = " or ".join(f"{each:,}" for each in sorted({side(every, pixels) for every in SHAPES}))
            cells[f"{sides} px"] = f"{cost.trace_bytes / 2**20:,.0f} · {cost.nbytes / 2**20:,.0f}"
    return "\n".join(table(rows, corner="model"))


if __name__ == "__main__":
    print(memory_table())
