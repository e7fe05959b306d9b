"""What the usual models take by formula, as a table: ``python -m benchmarks.memory_table``."""

from __future__ import annotations

import torch

from benchmarks.shapes import B_14, B_16, TI_16, Shape
from vitviz.analysis.costs import Cost, cost_of
from vitviz.models.config import ViTConfig
from vitviz.models.vit import VisionTransformer

# Of a square input in pixels; a patch takes the largest multiple of its own that fits.
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
    """The network of a shape; what scales a layer is in the weights before it once they are read."""
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
    """In single precision."""
    # Shapes alone: nothing is allocated.
    with torch.device("meta"):
        network = VisionTransformer(config_of(shape))
    return sum(parameter.nbytes for parameter in network.parameters())


def side(shape: Shape, about: int) -> int:
    """The largest multiple of the patch that is no more than a number of pixels."""
    return about // shape.patch * shape.patch


def cost(shape: Shape, about: int) -> Cost:
    """Of one square image of this side."""
    config = config_of(shape)
    return cost_of(config, config.layout(side(shape, about), side(shape, about)))


def table() -> str:
    """Weights, and what an analysis keeps and needs at once at each resolution, in MiB and Markdown."""
    sides = [" or ".join(f"{each:,}" for each in sorted({side(shape, about) for shape in SHAPES})) for about in SIDES]
    rows = [["model", "weights", *(f"{each} px" for each in sides)], ["---"] * (2 + len(SIDES))]
    for shape in SHAPES:
        costs = [cost(shape, about) for about in SIDES]
        cells = [f"{_mebibytes(each.trace_bytes)} · {_mebibytes(each.nbytes)}" for each in costs]
        rows.append([f"ViT-{shape.name}", _mebibytes(weight_bytes(shape)), *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _mebibytes(count: int) -> str:
    return f"{count / MIB:,.0f}"


if __name__ == "__main__":
    print(table())
