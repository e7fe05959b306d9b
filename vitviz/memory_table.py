"""What the usual models take by formula, as a table: ``python -m vitviz.memory_table``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vitviz.config import ViTConfig
from vitviz.costs import Cost, cost_of
from vitviz.vit import VisionTransformer

# Of a square input in pixels; a patch takes the largest multiple of its own that fits.
SIDES = (224, 448, 518, 1036)
MIB = 2**20


@dataclass(frozen=True)
class Size:
    """A Vision Transformer as the papers name them, with a classifier of ImageNet's 1,000 classes.

    Args:
        name: of the model.
        patch, image: side of a patch, and of the images that it is trained on, in pixels.
        width, depth, heads: of the encoder.
    """

    name: str
    patch: int
    image: int
    width: int
    heads: int
    depth: int = 12

    @property
    def config(self) -> ViTConfig:
        return ViTConfig(
            image_height=self.image,
            image_width=self.image,
            patch_height=self.patch,
            patch_width=self.patch,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            head_width=self.width // self.heads,
            mlp_width=4 * self.width,
            classes=1000,
        )

    @property
    def weight_bytes(self) -> int:
        """In single precision."""
        # Shapes alone: nothing is allocated.
        with torch.device("meta"):
            network = VisionTransformer(self.config)
        return sum(parameter.nbytes for parameter in network.parameters())

    def side(self, about: int) -> int:
        """The largest multiple of the patch that is no more than a number of pixels."""
        return about // self.patch * self.patch

    def cost(self, about: int) -> Cost:
        """Of one square image of this side."""
        return cost_of(self.config, self.config.layout(self.side(about), self.side(about)))


SIZES = (
    Size("ViT-Ti/16", 16, 224, 192, 3),
    Size("ViT-S/16", 16, 224, 384, 6),
    Size("ViT-B/16", 16, 224, 768, 12),
    Size("ViT-L/16", 16, 224, 1024, 16, depth=24),
    Size("ViT-S/14", 14, 518, 384, 6),
    Size("ViT-B/14", 14, 518, 768, 12),
    Size("ViT-L/14", 14, 518, 1024, 16, depth=24),
)


def table() -> str:
    """Weights, and what an analysis keeps and needs at once at each resolution, in MiB and Markdown."""
    sides = [" or ".join(f"{side:,}" for side in sorted({size.side(about) for size in SIZES})) for about in SIDES]
    rows = [["model", "weights", *(f"{side} px" for side in sides)], ["---"] * (2 + len(SIDES))]
    for size in SIZES:
        costs = [size.cost(about) for about in SIDES]
        cells = [f"{_mebibytes(cost.trace_bytes)} · {_mebibytes(cost.nbytes)}" for cost in costs]
        rows.append([size.name, _mebibytes(size.weight_bytes), *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _mebibytes(count: int) -> str:
    return f"{count / MIB:,.0f}"


if __name__ == "__main__":
    print(table())
