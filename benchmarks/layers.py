"""The table of layers in docs/methods.md: ``python -m benchmarks.layers CHECKPOINT …``.

How well each layer's tokens find the patches of mirrored and of enlarged photographs again, and which is chosen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import vitviz
from vitviz.features import layer_scores


def main(checkpoints: Sequence[str]) -> None:
    """Print a row for raw pixels and for each layer of each checkpoint; the bundled one by default."""
    print("| | mirrored: the same place | within one | enlarged 1.4 ×: the same place | within one |")
    print("| --- | --- | --- | --- | --- |")
    for name in checkpoints or [None]:
        model = vitviz.load(name) if name else vitviz.load()
        scores = layer_scores(model)
        for layer, row in enumerate([scores.pixels, *scores.layers], -1):
            title = f"{model.name}, raw pixels" if layer < 0 else f"layer {layer}{', chosen' * (layer == scores.best)}"
            print(f"| {title} | {' | '.join(f'{value:.2f}' for value in row.flatten().tolist())} |")


if __name__ == "__main__":
    main(sys.argv[1:])
