"""The grids of patches among which a module's layers attend: usually one, several if it is hierarchical."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from vitviz.models.capture.calls import AttentionCall
from vitviz.models.capture.interception import Interception
from vitviz.models.capture.structure import CallShape

# The most by which a grid's aspect ratio may differ from the picture's, since a stem may round.
MAX_ASPECT_ERROR = 0.1


@dataclass(frozen=True)
class AttentionGrid:
    """Layers whose tokens are one grid of patches.

    Args:
        rows, columns: size in patches.
        extra: number of other tokens among them.
        layers: number of calls of attention among its patches and other tokens.
    """

    rows: int
    columns: int
    extra: int
    layers: int

    @property
    def tokens(self) -> int:
        """Number of all tokens."""
        return self.rows * self.columns + self.extra


@dataclass
class _ShapeRecorder:
    """Records the shapes of calls, without those whose heads another one joins, by number."""

    shapes: dict[int, CallShape] = field(default_factory=dict)

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        for part in call.parts:
            del self.shapes[part]
        self.shapes[call.number] = CallShape.of(call)
        return call.output


def call_shapes(run: Callable[[torch.Tensor], torch.Tensor], pixels: torch.Tensor) -> list[CallShape]:
    """The shapes of all calls of attention in a forward pass, which is a :data:`verification.Run`."""
    recorder = _ShapeRecorder()
    with Interception(recorder):
        run(pixels)
    return list(recorder.shapes.values())


def is_one_grid(shapes: Sequence[CallShape]) -> bool:
    """Whether all layers attend globally among the same tokens; a pooling may follow."""
    layers = [shape for shape in shapes if shape.queries > 1]
    return all(shape.windows == 1 for shape in shapes) and len({(shape.queries, shape.keys) for shape in layers}) <= 1


def attention_grids(shapes: Sequence[CallShape], size: tuple[int, int], extra: int) -> list[AttentionGrid]:
    """The grids of a module's layers, sorted by number of layers, then by number of patches, most first.

    Args:
        shapes: shapes of all calls.
        size: height and width of the image in pixels.
        extra: number of the module's tokens that are not patches; a layer has all of them or none.
    """
    counts: Counter[tuple[int, int, int]] = Counter()
    for shape in shapes:
        if shape.queries != shape.keys:
            continue
        for tokens in shape.token_counts:
            candidates = [(grid_of(tokens - others, size), others) for others in dict.fromkeys((0, extra))]
            counts.update({(*grid, others) for grid, others in candidates if grid is not None})
    grids = [AttentionGrid(*key, layers) for key, layers in counts.items()]
    return sorted(grids, key=lambda grid: (-grid.layers, -grid.rows * grid.columns))


def grid_of(count: int, size: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns of ``count`` patches on an image of this height and width; None if they form no grid."""
    height, width = size
    for rows in range(1, count + 1):
        columns, rest = divmod(count, rows)
        if not rest and abs(rows * width / (columns * height) - 1) < MAX_ASPECT_ERROR:
            return (rows, columns) if not height % rows and not width % columns else None
    return None
