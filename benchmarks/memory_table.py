"""A table of the memory that usual models need, by formula: ``python -m benchmarks.memory_table``."""

from __future__ import annotations

import torch

from benchmarks.shapes import B_14, B_16, TI_16, Shape
from vitviz.analysis.costs import Cost, cost_of
from vitviz.models.config import ViTConfig
from vitviz.models.vit import VisionTransformer

# Sides of square inputs in pixels; each is rounded down to a multiple of the patch.
SIDES = (224, 448, 518, 1036)
MIB = 2**20
SHAPES = (
    TI_16,
    Shape("S/16", 224, 16, 384, 6),
    B_16,
    Shape("L/16", 224, 16, 1024, 16, depth=24),
    Shape("S/14", 518, 14, 384, 6),
    B_14,
    Shape("L/14", 518, 14, 1024, 16, depth=24),
)


def config_of(shape: Shape) -> ViTConfig:
    """The configuration of a shape; layer scales are merged into the weights before them when a checkpoint is read."""
    return ViTConfig(
        image_height=shape.image,
        image_width=shape.image,
        patch_height=shape.patch,
        patch_width=shape.patch,
        width=shape.width,
        depth=shape.depth,
        heads=shape.heads,
        head_width=shape.width // shape.heads,
        mlp_width=4 * shape.width,
        classes=shape.classes,
    )


def weight_bytes(shape: Shape) -> int:
    """Bytes of the weights in single precision."""
    # The meta device allocates nothing.
    with torch.device("meta"):
        network = VisionTransformer(config_of(shape))
    return sum(parameter.nbytes for parameter in network.parameters())


def side(shape: Shape, pixels: int) -> int:
    """The largest multiple of the patch up to a number of pixels."""
    return pixels // shape.patch * shape.patch


def cost(shape: Shape, pixels: int) -> Cost:
    """The cost of one square image of this side."""
    config = config_of(shape)
    return cost_of(config, config.layout(side(shape, pixels), side(shape, pixels)))


def table() -> str:
    """Weights, and bytes of the trace and in total for an analysis at each resolution, in MiB, as Markdown."""
    sides = [" or ".join(f"{each:,}" for each in sorted({side(shape, pixels) for shape in SHAPES})) for pixels in SIDES]
    rows = [["model", "weights", *(f"{each} px" for each in sides)], ["---"] * (2 + len(SIDES))]
    for shape in SHAPES:
        costs = [cost(shape, pixels) for pixels in SIDES]
        cells = [f"{_mebibytes(each.trace_bytes)} · {_mebibytes(each.nbytes)}" for each in costs]
        rows.append([f"ViT-{shape.name}", _mebibytes(weight_bytes(shape)), *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _mebibytes(count: int) -> str:
    return f"{count / MIB:,.0f}"


if __name__ == "__main__":
    print(table())
